// The recipes of the TypeScript package's README, with NestJS and BullMQ themselves, and the package in Jest. Each test
// runs the code of the README in processes of its own, against a service of its own.
//
//     node tests/clients/recipes.mjs BINARY     (installs node/package.json and the built package in a directory of its own)

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const HERE = dirname(fileURLToPath(import.meta.url));
const PACKAGE = join(HERE, '..', '..', 'clients', 'typescript');
const BINARY = resolve(process.argv[2] ?? 'target/debug/lockkeeper');
const PATIENCE = 60_000;

const directory = mkdtempSync(join(tmpdir(), 'lockkeeper-recipes-'));
const processes = [];
let environment;

async function until(what, check) {
    for (const end = Date.now() + PATIENCE; !(await check()); await pause(50)) {
        if (Date.now() > end) assert.fail(`${what}: not within ${PATIENCE / 1000} s\n${logs()}`);
    }
}

const logs = () => readdirSync(directory).filter((name) => name.startsWith('log')).map((name) => read(name)).join('\n');

const read = (name) => {
    try {
        return readFileSync(join(directory, name), 'utf8');
    } catch {
        return '';
    }
};

/** The lines of a file that the programs write. */
const lines = (name) => read(name).split('\n').filter(Boolean);

async function freePort() {
    const probe = createServer().listen(0, '127.0.0.1');
    await new Promise((resolve) => probe.once('listening', resolve));
    const { port } = probe.address();
    await new Promise((resolve) => probe.close(resolve));
    return port;
}

/** Starts a program, whose output is a file. */
function start(command, ...words) {
    const name = join(directory, `log${processes.length}`);
    const child = spawn('sh', ['-c', 'exec "$@" >"$0" 2>&1', name, command, ...words], { cwd: directory, env: environment });
    processes.push(child);
    return child;
}

async function end(child, signal) {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill(signal);
    await new Promise((resolve) => child.once('exit', resolve));
}

/** The program of a recipe of the README, with what it leaves out, as JavaScript. */
function program(name, place, before, after = '', change = (text) => text) {
    const section = readFileSync(join(PACKAGE, 'README.md'), 'utf8').split('\n## NestJS and BullMQ\n')[1].split('\n## ')[0];
    const recipe = change(section.split('```ts\n')[place].split('```')[0]);
    const typescript = createRequire(join(directory, 'package.json'))('typescript');
    const { outputText } = typescript.transpileModule([before, recipe, after].join('\n'), {
        compilerOptions: { module: 'ESNext', target: 'ES2022', experimentalDecorators: true, emitDecoratorMetadata: true },
    });
    writeFileSync(join(directory, name), outputText);
}

before(async () => {
    for (const file of ['package.json', 'package-lock.json']) copyFileSync(join(HERE, 'node', file), join(directory, file));
    const npm = (...words) => execFileSync('npm', [...words, '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error'], { cwd: directory });
    npm('ci');
    const packed = npm('pack', PACKAGE).toString().trim();
    const place = join(directory, 'node_modules', 'lockkeeper');
    mkdirSync(place);
    execFileSync('tar', ['-xzf', packed, '-C', place, '--strip-components', '1'], { cwd: directory });
    const port = await freePort();
    const clean = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('LOCKKEEPER') && !name.startsWith('NODE_TEST')));
    environment = { ...clean, LOCKKEEPER_URL: `http://127.0.0.1:${port}` };
    start(BINARY, 'serve', '--listen', `127.0.0.1:${port}`, '--store', 'embedded:data');
    await until('the service is ready', async () => (await fetch(`${environment.LOCKKEEPER_URL}/readyz`).catch(() => ({}))).ok);
});

after(async () => {
    await Promise.all(processes.map((child) => end(child, 'SIGKILL')));
    rmSync(directory, { recursive: true });
});

test('a job of NestJS runs on one of two instances', async () => {
    const before = `
        import 'reflect-metadata';
        import { appendFileSync } from 'node:fs';
        import { setTimeout } from 'node:timers/promises';
        import { Global, Injectable, Module } from '@nestjs/common';
        import { NestFactory } from '@nestjs/core';
        import { Cron, ScheduleModule } from '@nestjs/schedule';
        import { LockClient } from 'lockkeeper';`;
    const after = `
        @Module({ imports: [ScheduleModule.forRoot(), LockModule], providers: [Nightly] })
        class App {}
        const app = await NestFactory.createApplicationContext(App);
        appendFileSync('ready', process.pid + '\\n');
        process.on('SIGTERM', () => app.close());`;
    const often = (text) => text.replace("'0 3 * * *'", "'*/6 * * * * *'").replace('@Cron', `
        async report(signal: AbortSignal) {
            appendFileSync('nightly', Math.floor(Date.now() / 6000) + '\\n');
        }
        @Cron`);
    program('nest.mjs', 1, before, after, often);
    const both = [start('node', 'nest.mjs'), start('node', 'nest.mjs')];
    await until('both are ready', () => lines('ready').length === 2);
    await until('two runs', () => lines('nightly').length >= 2);
    const runs = lines('nightly');
    assert.deepEqual(runs, [...new Set(runs)], 'both have run it');
    await Promise.all(both.map((child) => end(child, 'SIGTERM')));
    assert.deepEqual(both.map((child) => child.exitCode), [0, 0], logs());
});

test('jobs of BullMQ that need one key run one after the other, and none fails', async () => {
    const port = await freePort();
    start('redis-server', '--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no');
    const before = `
        import { appendFileSync } from 'node:fs';
        import { setTimeout } from 'node:timers/promises';
        import { DelayedError, Worker } from 'bullmq';
        import { LockBusy, LockClient } from 'lockkeeper';
        const connection = { host: '127.0.0.1', port: ${port}, maxRetriesPerRequest: null };
        const locks = new LockClient();
        async function importShop({ shop, number }, signal, fencingToken) {
            appendFileSync('imports', JSON.stringify([shop, number, 'begins', fencingToken]) + '\\n');
            await setTimeout(300);
            appendFileSync('imports', JSON.stringify([shop, number, 'ends', fencingToken]) + '\\n');
        }`;
    program('bull.mjs', 2, before);
    writeFileSync(join(directory, 'queue.mjs'), `
        import { Queue } from 'bullmq';
        const queue = new Queue('imports', { connection: { host: '127.0.0.1', port: ${port} } });
        if (process.argv[2] === 'add') {
            for (let number = 0; number < 8; number++) await queue.add('import', { shop: number % 2, number });
        }
        console.log(JSON.stringify(await queue.getJobCounts('completed', 'failed')));
        await queue.close();`);
    const counts = (word) => JSON.parse(execFileSync('node', ['queue.mjs', word], { cwd: directory, env: environment }));
    const both = [start('node', 'bull.mjs'), start('node', 'bull.mjs')];
    counts('add');
    await until('all jobs are done', async () => (await pause(500), counts('look').completed === 8));
    assert.deepEqual(counts('look'), { completed: 8, failed: 0 });
    for (const shop of [0, 1]) {
        const events = lines('imports').map((line) => JSON.parse(line)).filter(([one]) => one === shop);
        assert.equal(events.length, 8);
        events.forEach(([, number, what, fencingToken], place) => {
            assert.equal(what, place % 2 ? 'ends' : 'begins', JSON.stringify(events));
            if (what === 'ends') assert.equal(number, events[place - 1][1]);
            else if (place) assert.ok(fencingToken > events[place - 1][3]);
        });
    }
    await Promise.all(both.map((child) => end(child, 'SIGTERM')));
});

test('in Jest the package loads, holds leases with a blocked loop and with fake timers, and tells of a loss', () => {
    mkdirSync(join(directory, 'jest'));
    writeFileSync(join(directory, 'jest', 'lock.test.js'), `
        const { LeaseLost, LockBusy, LockClient } = require('lockkeeper');
        const client = new LockClient();
        test('a lease is held for longer than its TTL', async () => {
            const work = async ({ key }) => {
                for (const end = Date.now() + 2500; Date.now() < end; );
                await expect(client.withLock(key, () => {})).rejects.toBeInstanceOf(LockBusy);
                return 'done';
            };
            await expect(client.withLock('jest', { ttl: '1s' }, work)).resolves.toBe('done');
            expect((await client.get('jest')).held).toBe(false);
        });
        test('fake timers are not the clock of a lease', async () => {
            jest.useFakeTimers();
            const left = await client.withLock('jest', { ttl: '1m' }, ({ remaining, stillMine }) => stillMine('50s') && remaining());
            jest.useRealTimers();
            expect(left).toBeGreaterThan(50);
            expect(left).toBeLessThanOrEqual(60);
        });
        test('several keys, and a loss', async () => {
            const work = async (lease) => {
                expect(Object.keys(lease.fencingTokens)).toEqual(['jest/a', 'jest/b']);
                await client.forceRelease('jest/a');
                await new Promise((resolve) => lease.signal.addEventListener('abort', resolve));
            };
            const lost = await client.withLock(['jest/a', 'jest/b'], { ttl: '1s' }, work).catch((error) => error);
            expect(lost).toBeInstanceOf(LeaseLost);
            expect(lost.key).toBe('jest/a');
        });
    `);
    const done = execFileSync('npx', ['jest', '--rootDir', 'jest', '--ci'], { cwd: directory, env: environment, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
    assert.ok(!done.includes('did not exit'), done);
});
