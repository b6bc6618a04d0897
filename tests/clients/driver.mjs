// The driver of the TypeScript client: `node driver.mjs MODE KEY [name=value...]`, with LOCKKEEPER_URL set.
//
// Prints one line per event, and the outcome as the last one. It imports the built package.

import { writeSync } from 'node:fs';
import { setTimeout as pause } from 'node:timers/promises';
import {
    LeaseLost, LockBusy, LockClient, RequestRefused, ServiceUnavailable, WaitCancelled,
} from '../../clients/typescript/dist/index.js';

const [mode, key, ...rest] = process.argv.slice(2);
const options = Object.fromEntries(rest.map((one) => [one.slice(0, one.indexOf('=')), one.slice(one.indexOf('=') + 1)]));
const { ttl = '3s', wait = '10s', seconds = '2', after = '300ms' } = options;
const ms = (text) => (text.endsWith('ms') ? parseFloat(text) : text.endsWith('m') ? parseFloat(text) * 6e4 : parseFloat(text) * 1e3);
const say = (line) => writeSync(1, `${line}\n`); // Also flushed before an exit.

const client = new LockClient();
const term = new AbortController();
process.on('SIGTERM', () => term.abort(new Error('TERM')));

class OwnError extends Error {}

/** Works in small steps, and stops when it is told to. */
async function steps(signal) {
    for (const end = performance.now() + ms(seconds); performance.now() < end; ) {
        await pause(Math.min(50, Math.max(1, end - performance.now())), undefined, { signal });
    }
}

// Stops the whole loop, without a processor.
function block() {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms(seconds));
}

async function run() {
    if (mode === 'fork') return 'done'; // A process of Node cannot fork.
    if (mode === 'get') return (await client.get(key)).held ? 'held' : 'free';
    if (mode === 'exit') setTimeout(() => process.exit(0), ms(after));
    if (mode === 'cancel') setTimeout(() => term.abort(new Error('cancelled')), ms(after));
    const share = {};
    for (const name of ['slots', 'units']) if (options[name]) share[name] = Number(options[name]);
    const [keys, own] = options.also ? [[key, { key: options.also, ...share }], {}] : [key, share];
    if (mode === 'twice') await client.withLock(keys, { ttl, wait, ...own }, (lease) => say(`acquired ${lease.fencingTokens[key]}`));
    await client.withLock(keys, { ttl, wait, signal: term.signal, ...own }, async ({ signal, fencingTokens }) => {
        say(`acquired ${fencingTokens[key]}`);
        signal.addEventListener('abort', () => signal.reason instanceof LeaseLost && say('told'));
        if (mode === 'throw') throw new OwnError('of the work');
        if (mode === 'block') return block();
        if (mode === 'odd') {
            const status = await client.get(key);
            const held = [];
            for await (const lock of client.list(key)) held.push(lock.key);
            if (!status.held || status.key !== key || !held.includes(key)) throw new Error(`not held: ${JSON.stringify(status)}`);
            return;
        }
        await steps(signal);
    });
    return 'done';
}

function outcome(error) {
    if (mode === 'throw' && error instanceof OwnError) return 'done';
    if (error === term.signal.reason) return 'cancelled';
    const kinds = [[LockBusy, 'busy'], [LeaseLost, 'lost'], [ServiceUnavailable, 'unavailable'], [RequestRefused, 'refused']];
    const known = [...kinds, [WaitCancelled, 'cancelled']].find(([kind]) => error instanceof kind);
    console.error(error);
    if (!known) process.exit(1);
    return known[1];
}

say(await run().catch((error) => (term.signal.aborted && error.name === 'AbortError' ? 'cancelled' : outcome(error))));
