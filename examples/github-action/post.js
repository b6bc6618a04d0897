// Releases the key at the end of the job, also of one that has failed or was cancelled.

'use strict';

const { call, fail } = require('./service.js');

async function main() {
    const { STATE_token: token, STATE_fencing_token: fencing_token } = process.env;
    if (!token) return;
    const { status, body } = await call('DELETE', fencing_token ? `?fencing_token=${fencing_token}` : '', token);
    if (status === 204) return;
    // Without a fencing token the job had no lease, so there is nothing to be lost.
    if (status === 409 && fencing_token) fail(body.detail);
    else if (status !== 409) console.log(`::warning::the key is free after its TTL: ${body.detail}`);
}

main();
