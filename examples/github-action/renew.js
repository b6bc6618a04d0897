// Renews the lease until it is released or lost, or the runner of the job has ended. The runner also
// ends it with the job, as it does with all that has its RUNNER_TRACKING_ID.

'use strict';

const { call, duration, pause } = require('./service.js');

const { STATE_token: token, RUNNER_PID: runner } = process.env;

function runs(pid) {
    try {
        return process.kill(Number(pid), 0);
    } catch {
        return false;
    }
}

async function main() {
    const third = duration('ttl') / 3;
    for (let next = Date.now() + third; runs(runner); await pause(Math.min(1000, third / 4))) {
        if (Date.now() < next) continue;
        const { status } = await call('PUT', '/refresh', token, {}, third / 1000);
        if (status === 409) return;
        if (status === 200) next = Date.now() + third; // Otherwise again after the pause.
    }
}

main();
