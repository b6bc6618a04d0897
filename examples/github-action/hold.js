// Holds the lease for the job: main.js starts it, and post.js asks for the release. It ends with the runner, which also
// ends it with the job, as it does with all that has its RUNNER_TRACKING_ID.

import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer } from 'node:http';
import { LockClient } from 'lockkeeper';

const { GITHUB_REPOSITORY: repository, GITHUB_JOB: job, GITHUB_RUN_ID: run, RUNNER_PID: runner } = process.env;

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? '').trim();

const path = `/${randomBytes(16).toString('hex')}`; // Only post.js knows it.
const server = createServer((request, response) =>
    request.url === path ? server.emit('release', response) : response.writeHead(404).end());

const unheard = new AbortController(); // If main.js ends before it has heard of the lease.
const giveUp = () => unheard.abort(new Error('the step has ended'));
process.connected ? process.once('disconnect', giveUp) : giveUp();
process.once('message', () => process.off('disconnect', giveUp));

function endWithTheRunner() {
    try {
        process.kill(Number(runner), 0);
    } catch {
        process.kill(process.pid, 'SIGKILL'); // No release: steps of the job may go on for a while.
    }
}

async function main() {
    await once(server.listen(0, '127.0.0.1'), 'listening');
    setInterval(endWithTheRunner, 1000);
    const told = {};
    let post;
    try {
        const warn = (warning) => Object.assign(told, { warning });
        const client = new LockClient({ url: input('url'), apiKey: input('api-key'), warn });
        const options = { ttl: input('ttl'), wait: input('wait'), owner: `${repository} ${job} ${run}` };
        await client.withLock(input('key'), { ...options, signal: unheard.signal }, async ({ fencingToken }) => {
            delete told.warning; // It was about the wait.
            process.send({ fencingToken, holder: `http://127.0.0.1:${server.address().port}${path}` });
            [post] = await once(server, 'release', { signal: unheard.signal });
        });
    } catch (error) {
        told.error = error.message;
    }
    if (post) post.end(JSON.stringify(told), () => process.exit());
    else if (process.connected) process.send(told, () => process.exit());
    else process.exit();
}

main();
