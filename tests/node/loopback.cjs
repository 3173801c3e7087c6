// Preloaded into servers that would listen on every interface and on a fixed port: makes them
// listen on a free loopback port instead, and writes its number to the file named in LISTEN_FILE.
"use strict";
const { writeFileSync } = require("node:fs");
const { Server } = require("node:net");

const listen = Server.prototype.listen;
Server.prototype.listen = function (...args) {
  const callback = args.find((arg) => typeof arg === "function");
  this.once("listening", () => writeFileSync(process.env.LISTEN_FILE, `${this.address().port}\n`));
  return listen.call(this, 0, "127.0.0.1", callback);
};
