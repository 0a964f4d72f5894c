# A node of Penstock: `docker build -t penstock .`
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
RUN python -m venv /opt/penstock && /opt/penstock/bin/pip install --no-cache-dir '.[cluster]'

FROM python:3.12-slim
RUN useradd --uid 10001 --create-home penstock && mkdir /data && chown penstock /data
COPY --from=build /opt/penstock /opt/penstock
ENV PATH=/opt/penstock/bin:$PATH PENSTOCK_DATA=/data PENSTOCK_HOST=0.0.0.0 PENSTOCK_PORT=8080
USER 10001
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
# Shards are handed over on SIGTERM: give it a minute (docker stop --time 60).
ENTRYPOINT ["penstock"]
CMD ["serve"]
