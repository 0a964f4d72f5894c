// Built into the Python package, and committed there: whoever installs it needs no Node.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { defineConfig, type Plugin } from "vite";

const SETTINGS = ["index.html", "package-lock.json", "package.json", "tsconfig.json", "vite.config.ts"];

/** What was built is known by the hash of its sources, so that a test can tell when it is old. */
function sources(): Plugin {
  return {
    name: "sources",
    generateBundle() {
      const files = [...SETTINGS, ...(readdirSync("src", { recursive: true }) as string[]).filter((each) => /\.\w+$/.test(each)).map((each) => join("src", each))];
      const hash = createHash("sha256");
      for (const file of files.sort()) hash.update(`${file}\n`).update(readFileSync(file)).update("\n");
      this.emitFile({ type: "asset", fileName: "sources.sha256", source: `${hash.digest("hex")}\n` });
    },
  };
}

export default defineConfig({
  base: "./", // works under any prefix
  plugins: [sources()],
  build: {
    outDir: "../src/penstock/server/dashboard/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
  server: { proxy: { "/v1": { target: "http://127.0.0.1:8080", ws: true } } },
});
