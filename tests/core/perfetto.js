// `node perfetto.js FOLDER`: the trace processor of Perfetto's page, as FOLDER has it (engine_bundle.js and its WebAssembly), with
// its own protocol on stdin and stdout. The bundle is a worker of a browser; it gets here what it needs of one.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const vm = require('node:vm');

const folder = process.argv[2];
const output = process.stdout;
const input = process.stdin;

globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = {href: 'engine_bundle.js'};
globalThis.XMLHttpRequest = class {
  open(method, name) { this.name = path.basename(name); }
  send() { this.response = fs.readFileSync(path.join(folder, this.name)); }
};
console.log = console.error;  // stdout is the protocol's
const {process: node} = globalThis;
globalThis.process = undefined;  // what it looks for to know Node, where it refuses to run
vm.runInThisContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'));
globalThis.process = node;

const port = {postMessage: (bytes) => output.write(bytes)};
self.onmessage({data: port});
setImmediate(() => {  // it begins in promises
  input.on('data', (bytes) => port.onmessage({data: new Uint8Array(bytes)}));
  input.on('end', () => node.exit(0));
});
