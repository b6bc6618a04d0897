// Acquires the key, by a process that holds the lease for as long as the job runs.

import { fork } from 'node:child_process';
import { appendFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { fail } from './fail.js';

const tell = (file, name, value) => appendFileSync(process.env[file], `${name}=${value}\n`);

const file = fileURLToPath(new URL('hold.js', import.meta.url));
const env = { ...process.env, RUNNER_PID: process.ppid };
const holder = fork(file, { detached: true, stdio: ['ignore', 'ignore', 'ignore', 'ipc'], env });
let error = 'the process that holds the lease has ended';

function cancel() {
    error = 'cancelled';
    if (holder.connected) holder.disconnect(); // It gives up the claim, and ends.
}

process.on('SIGINT', cancel);
process.on('SIGTERM', cancel);

holder.on('exit', () => fail(error));
holder.on('message', (told) => {
    if (told.error) return void (error = told.error);
    tell('GITHUB_STATE', 'holder', told.holder);
    tell('GITHUB_OUTPUT', 'fencing-token', told.fencingToken);
    holder.removeAllListeners('exit');
    holder.send('heard', () => holder.disconnect());
    holder.unref();
});
