import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

// The built page is a part of the Python package. Every address in it is relative: it works behind any prefix.
export default defineConfig({
  base: "./",
  plugins: [svelte()],
  build: {
    outDir: "../src/rowlock/http/pages",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
    reportCompressedSize: true,
  },
  server: { proxy: { "/api": "http://127.0.0.1:8090" } },
});
