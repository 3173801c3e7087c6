// The scenario, for clients of either TypeScript SDK: what differs between them is handed in.
"use strict";

const ANSWERS = { username: "ada", email: "ada@example.com" };
const MODEL_SAYS = "forty-two";
const STEPS = 5;

const text = (result) => result.content[0].text;
const names = (list) => list.map((item) => item.name).sort();

// `call(name, args, options)` calls a tool. `client` is connected and has both handlers.
async function scenario(client, call) {
  const report = {
    tools: names((await client.listTools()).tools),
    prompts: names((await client.listPrompts()).prompts),
    resources: (await client.listResources()).resources.map((item) => item.uri).sort(),
    templates: (await client.listResourceTemplates()).resourceTemplates.map((item) => item.uriTemplate).sort(),
    echo: text(await call("test_echo", { words: "hello" })),
    error: text(await call("test_error_handling", {})),
  };
  const prompt = await client.getPrompt({ name: "test_prompt_with_arguments", arguments: { arg1: "one", arg2: "two" } });
  report.prompt = prompt.messages[0].content.text;
  report.resource = (await client.readResource({ uri: "test://static-text" })).contents[0].text;
  report.progress = [];
  await call("test_counting", { steps: STEPS }, { onprogress: (step) => report.progress.push(step.progress) });
  report.elicitation = text(await call("test_elicitation", { message: "Who are you?" }));
  report.sampling = text(await call("test_sampling", { prompt: "What is the answer?" }));
  report.cancelled = await cancel(call);
  return report;
}

async function cancel(call) {
  const name = crypto.randomUUID();
  const abort = new AbortController();
  const options = { signal: abort.signal, onprogress: () => abort.abort("the user changed their mind") };
  const ended = await call("test_wait", { name }, options).then(() => "answered", () => "cancelled");
  if (ended !== "cancelled") return `the call was ${ended}`;
  return text(await call("test_cancelled", { name })).replace(name, "this call");
}

const elicited = async () => ({ action: "accept", content: ANSWERS });
const sampled = async () => ({
  role: "assistant",
  model: "test-model",
  content: { type: "text", text: MODEL_SAYS },
});

function finish(running) {
  running.then(
    (report) => process.stdout.write(JSON.stringify(report)),
    (error) => {
      process.stderr.write(`${error.stack}\n`);
      process.exitCode = 1;
    },
  );
}

module.exports = { elicited, scenario, finish, sampled };
