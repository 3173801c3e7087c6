// Drive a client by lines of JSON, as driver.py does.
"use strict";
const readline = require("node:readline");

exports.target = JSON.parse(process.argv[2]);

exports.follow = async (client, call) => {
  const say = (seen) => process.stdout.write(JSON.stringify(seen) + "\n");
  client.onerror = (error) => process.stderr.write(`onerror: ${error.message}\n`);
  say({ up: true });
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    try {
      if (asked.do === "list") {
        say({ tools: (await client.listTools()).tools.map((tool) => tool.name) });
      } else {
        const result = await call(asked.tool, asked.arguments);
        const text = result.content.filter((block) => block.type === "text").map((block) => block.text).join("\n");
        say({ text, error: Boolean(result.isError), raised: "" });
      }
    } catch (error) {
      say({ text: error.message, error: true, raised: error.constructor.name });
    }
  }
  await client.close();
};
