"""WASM handlers: modules that run in a sandbox inside the worker. `jobs.wasm` registers one. See docs/wasm.md."""
