// Adds one to the number in a file, many times, each time under the lock; see tests/php/worker.php.
// Usage: node worker.js RECIPE PORT KEY FILE ROUNDS
'use strict';

const { readFileSync, writeFileSync } = require('node:fs');
const { setTimeout: sleep } = require('node:timers/promises');
const { recipe } = require('./recipes.js');

const TTL_MS = 60_000;

async function main([name, port, key, file, rounds]) {
    const lock = recipe(name, Number(port));
    for (let round = 0; round < Number(rounds); round++) {
        const proof = await lock.wait(key, TTL_MS);
        if (proof === null) throw new Error(`${name} never had its turn in round ${round}`);
        const number = Number(readFileSync(file, 'utf8'));
        await sleep(Math.random());
        writeFileSync(file, String(number + 1));
        if (!(await lock.release(key, proof))) throw new Error(`${name} lost its lock in round ${round}`);
    }
    lock.close();
}

main(process.argv.slice(2));
