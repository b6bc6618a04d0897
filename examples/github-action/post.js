// Releases the key at the end of the job, also of one that has failed or was cancelled.

import { fail } from './fail.js';

const { STATE_holder: holder } = process.env;

const ended = { error: 'the process that renewed the lease has ended: another job may have had the key' };

if (holder) {
    const answer = fetch(holder, { method: 'POST', signal: AbortSignal.timeout(30_000) });
    const { error, warning } = await answer.then((told) => told.json()).catch(() => ended);
    if (error) fail(error);
    else if (warning) console.log(`::warning::${warning}`);
}
