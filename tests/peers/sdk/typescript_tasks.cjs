// A server on the TypeScript SDK v1 with a tool of each kind: plain, optional task, required task, and one that waits.
// It writes each method that it gets to the file that is its argument.
"use strict";
const { appendFileSync } = require("node:fs");
const { InMemoryTaskMessageQueue, InMemoryTaskStore } = require("@modelcontextprotocol/sdk/experimental/tasks");
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js");
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js");
const { ElicitResultSchema } = require("@modelcontextprotocol/sdk/types.js");

const server = new McpServer(
  { name: "typescript-tasks", version: "1.0.0" },
  {
    capabilities: { tasks: { cancel: {}, list: {}, requests: { tools: { call: {} } } } },
    taskStore: new InMemoryTaskStore(),
    taskMessageQueue: new InMemoryTaskMessageQueue(),
  },
);
const said = (text) => ({ content: [{ type: "text", text }] });

function task(name, taskSupport, work) {
  server.experimental.tasks.registerToolTask(
    name,
    { description: name, execution: { taskSupport } },
    {
      createTask: async (extra) => {
        const task = await extra.taskStore.createTask({ ttl: 60000, pollInterval: 50 });
        work(extra, task.taskId)
          .then((text) => text && extra.taskStore.storeTaskResult(task.taskId, "completed", said(text)))
          .catch((error) => process.stderr.write(`${error}\n`));
        return { task };
      },
      getTask: async (extra) => extra.taskStore.getTask(extra.taskId),
      getTaskResult: async (extra) => extra.taskStore.getTaskResult(extra.taskId),
    },
  );
}

server.registerTool("plain", { description: "plain" }, async () => said("plain did it"));
task("optional", "optional", async () => "optional did it");
task("required", "required", async () => "required did it");
task("endless", "required", () => new Promise(() => undefined));
task("asking", "required", async (extra, taskId) => {
  const params = { message: "which?", requestedSchema: { type: "object", properties: { colour: { type: "string" } } } };
  const answer = await extra.sendRequest({ method: "elicitation/create", params }, ElicitResultSchema, {
    relatedTask: { taskId },
  });
  return `asking got ${answer.content.colour}`;
});

const transport = new StdioServerTransport();
server.connect(transport).then(() => {
  const onmessage = transport.onmessage;
  transport.onmessage = (message, extra) => {
    if (message.method) appendFileSync(process.argv[2], `${message.method}${message.params?.task ? " as a task" : ""}\n`);
    onmessage(message, extra);
  };
});
