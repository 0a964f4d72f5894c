// Addresses are relative to the page, so that it works under any prefix.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger-ui", deepLinking: true, validatorUrl: null });
