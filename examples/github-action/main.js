// Acquires the key, and leaves a process behind that renews the lease for as long as the job runs.

'use strict';

const { randomBytes } = require('node:crypto');
const { spawn } = require('node:child_process');
const path = require('node:path');
const { call, duration, fail, pause, tell } = require('./service.js');

async function main() {
    const [ttl_ms, longest] = ['ttl', 'wait'].map(duration);
    const token = randomBytes(16).toString('hex');
    console.log(`::add-mask::${token}`);
    tell('GITHUB_STATE', 'token', token); // First: a job that is cancelled while it waits leaves the line.
    const { GITHUB_REPOSITORY: repository, GITHUB_RUN_ID: run, GITHUB_JOB: job } = process.env;
    const options = { ttl_ms, owner: `${repository} ${job} ${run}` };
    const end = Date.now() + longest;
    for (;;) {
        const left = Math.max(0, end - Date.now());
        const wait_ms = Math.min(left, 20_000);
        const { status, body } = await call('POST', '', token, { ...options, wait_ms }, 30);
        if (status === 201 || status === 200) {
            tell('GITHUB_OUTPUT', 'fencing-token', body.fencing_token);
            tell('GITHUB_STATE', 'fencing_token', body.fencing_token);
            break;
        }
        // 400 to 404: it would be the same the next time.
        if (left === 0 || (status >= 400 && status < 405)) return fail(body.detail);
        await pause(Math.min(status === 409 ? 100 : 1000, left));
    }
    const env = { ...process.env, STATE_token: token, RUNNER_PID: process.ppid };
    spawn(process.execPath, [path.join(__dirname, 'renew.js')], { detached: true, stdio: 'ignore', env }).unref();
}

main().catch((error) => fail(error.message));
