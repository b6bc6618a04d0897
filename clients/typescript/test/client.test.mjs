// What the rows of tests/clients/situations.py do not show.

import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer as createHttp, request as askHttp } from 'node:http';
import { createServer as createTls } from 'node:https';
import { Socket, connect, createServer as createNet } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, beforeEach, test } from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { inspect } from 'node:util';
import { Worker } from 'node:worker_threads';
import { Absence, USUAL } from '../dist/absence.js';
import { firstToAccept } from '../dist/connect.js';
import { proxyOf } from '../dist/proxy.js';
import { PAUSES } from '../dist/wait.js';
import { LeaseLost, LockBusy, LockClient, RequestRefused, ServiceUnavailable, WaitCancelled } from '../dist/index.js';
import { fake } from './fake.mjs';

for (const name of Object.keys(process.env)) if (name.startsWith('LOCKKEEPER')) delete process.env[name];

const unhandled = [];
process.on('unhandledRejection', (error) => unhandled.push(error));

// The worker of the package, to end it.
let worker;
const { postMessage } = Worker.prototype;
let limits; // In place of the usual ones of an absence.
Worker.prototype.postMessage = function (order, ...rest) {
    worker = this;
    if (order.claim && limits) order.claim.limits = limits;
    return postMessage.call(this, order, ...rest);
};

const service = await fake();
const warnings = [];
const client = new LockClient({ url: service.url, warn: (message) => warnings.push(message) });
const directory = mkdtempSync(join(tmpdir(), 'lockkeeper-'));
after(() => {
    service.close();
    rmSync(directory, { recursive: true });
    assert.deepEqual(unhandled, []);
});
beforeEach(() => {
    Object.assign(service, { seen: [], instead: () => undefined });
    service.held.clear();
    warnings.length = 0;
});

const until = async (check) => {
    for (let i = 0; i < 400; i++) {
        if (check()) return;
        await pause(25);
    }
    assert.fail(`not within 10 s: ${check}`);
};
/** The files of a certificate and its key, if there is openssl. */
function certificate(names) {
    const [key, cert] = [join(directory, 'key.pem'), join(directory, 'cert.pem')];
    const request = ['req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2'];
    const more = ['-subj', '/CN=other', '-addext', `subjectAltName=${names}`, '-keyout', key, '-out', cert];
    try {
        execFileSync('openssl', [...request, ...more], { stdio: 'ignore' });
        return { key, cert };
    } catch {
        return undefined;
    }
}

const isLost = (cause) => (error) => error instanceof LeaseLost && error.cause === cause && error.key === 'a';

test('the result of the work comes back, and the lease is released by its number', async () => {
    const result = await client.withLock('a/b c', { ttl: '1m30s', slots: 3 }, ({ fencingToken, stillMine, key }) => {
        assert.equal(key, 'a/b c');
        assert.ok(stillMine() && stillMine('60s') && !stillMine('2m'));
        assert.equal(service.held.get(key).number, fencingToken);
        return 7;
    });
    assert.equal(result, 7);
    const [acquire, release] = service.seen;
    assert.equal(acquire.path, '/locks/a/b%20c');
    assert.deepEqual([acquire.body.ttl_ms, acquire.body.wait_ms, acquire.body.slots], [90000, 0, 3]);
    assert.match(release.query.get('fencing_token'), /^\d+$/);
    assert.equal(service.held.size, 0);
});

test('arguments that make no sense are refused before anything is asked', async () => {
    for (const ttl of ['30 s', '5x', '1m30', '1m 30s', -1, NaN, Infinity, null, '1e3', '']) await assert.rejects(client.tryLock('a', { ttl }), TypeError, `${ttl}`);
    for (const ttl of [30000, 3601, '30000']) {
        const told = `ttl: ${ttl} is a number of seconds, more than an hour: write '${ttl}ms' or '${ttl}s'`;
        await assert.rejects(client.tryLock('a', { ttl }), { name: 'TypeError', message: told });
    }
    for (const slots of [NaN, Infinity, 1.5, '2']) await assert.rejects(client.tryLock('a', { slots }), TypeError, `${slots}`);
    await assert.rejects(client.tryLock('a', { tll: 5 }), /unknown option 'tll'/);
    await assert.rejects(client.withLock('a', {}), TypeError);
    for (const key of ['', 'a//b', '/a', 'a/', 'a/../b', '.', '\ud800']) await assert.rejects(client.get(key), RequestRefused, key);
    for (const [url, told] of [
        ['http://jane:s3cret@x', '`...@x` is not the URL of a service: only a host, a port and a path are allowed'],
        ['http://a/?b', '`http://a/?b` is not the URL of a service: only a host, a port and a path are allowed'],
        ['localhost:8080', '`localhost:8080` is not the URL of a service: use http:// or https://, or unix:FILE'],
        ['http://', '`http://` is not the URL of a service: write it like http://host:8080'],
        ['http://a:99999', '`http://a:99999` is not the URL of a service: write it like http://host:8080'],
        ['unix:', '`unix:` is not the URL of a service: name a file, as in unix:/run/lockkeeper/lockkeeper.sock'],
        ['http://a/locks/', '`http://a/locks/` is not the URL of a service: leave out /locks, as in http://host:8080'],
    ]) assert.throws(() => new LockClient(url), { name: 'TypeError', message: told });
    assert.equal(service.seen.length, 0);
});

test('units of the slots', async () => {
    await client.withLock('a', { slots: 8, units: 3 }, () => {});
    assert.deepEqual([service.seen[0].body.slots, service.seen[0].body.units], [8, 3]);
    await assert.rejects(client.tryLock('a', { slots: 8, units: NaN }), { message: "units: 'NaN' is no number of units" });
});

test('several keys are all held, with a fencing token each', async () => {
    const keys = ['b', { key: 'a/é', shared: true }, { key: 'gpu', slots: 8, units: 3 }, '__proto__'];
    await client.withLock(keys, { ttl: '1m', owner: 'me' }, async (lease) => {
        const [{ path, body }] = service.seen;
        assert.equal(path, '/locks');
        assert.deepEqual(body, { ttl_ms: 60000, wait_ms: 0, owner: 'me', keys: [{ key: 'b' }, ...keys.slice(1, 3), { key: '__proto__' }] });
        assert.deepEqual(lease.keys, ['b', 'a/é', 'gpu', '__proto__']);
        for (const key of lease.keys) assert.equal(lease.fencingTokens[key], service.held.get(key).number);
        assert.ok(lease.stillMine('50s'));
        for (const name of ['key', 'fencingToken', 'slot']) {
            assert.throws(() => lease[name], new RegExp(`several keys has no \`${name}\`: use \`${name}s`));
        }
        assert.equal(await client.tryLock(['c', 'gpu']), null);
        await assert.rejects(client.withLock(['c', 'gpu'], () => assert.fail()), { name: 'LockBusy', key: 'gpu' });
        assert.equal(service.held.size, 4);
    });
    assert.equal(service.held.size, 0);
    const last = service.seen.at(-1);
    assert.deepEqual([last.method, last.path, last.body.leases.length], ['DELETE', '/locks', 4]);
    assert.ok(last.body.leases.every((one) => one.fencing_token > 0));
});

test('several keys are lost with one of them, and the others last until the work has stopped', async () => {
    const work = client.withLock(['a', 'b'], { ttl: '900ms' }, async ({ signal, remaining }) => {
        service.held.delete('b');
        await until(() => signal.aborted);
        assert.deepEqual([...service.held.keys()], ['a']);
        assert.equal(remaining(), 0);
    });
    await assert.rejects(work, (error) => error instanceof LeaseLost && error.key === 'b'
        && error.message.startsWith("the lease on 'b' was lost before the work ended: "));
    await until(() => service.held.size === 0);
    assert.equal(service.seen[1].path, '/locks/refresh');
    assert.ok(service.seen[1].body.leases.every((one) => one.fencing_token > 0));
});

test('several keys that make no sense are refused before anything is asked', async () => {
    for (const [keys, message] of [
        [['a', 'b//c'], /"b\/\/c" is no key/], [['a', { name: 'b' }], /undefined is no key/], [['a', null], /null is no key/],
        [new Set(['a']), /is no key: a key is a text, and several are a list/], [['a', ['b']], /\[ 'b' \] is no key/],
        [['a', { key: 'b', slots: NaN }], /slots: 'NaN' is no number/], [['a', { key: 'b', slot: 2 }], /unknown option 'slot' of 'b'/],
        [[0, 1, 2, 3].map((number) => `${number}`.repeat(10_000)), /4 keys are too long together/],
    ]) await assert.rejects(client.tryLock(keys), { message });
    for (const share of [{ slots: 2 }, { units: 2 }, { shared: false }]) {
        await assert.rejects(client.tryLock(['a', 'b'], share), { message: /each of several keys has its own share/ });
    }
    assert.equal(service.seen.length, 0);
});

test('of several keys the one that is awaited is told', async () => {
    Object.assign(PAUSES, { first: 50 });
    const queue = [{ owner: 'first' }, { owner: 'me' }];
    const looks = { a: { key: 'a', held: true, waiters: 1, queue: [{}] }, b: { key: 'b', held: true, owner: 'other', waiters: 2, queue } };
    service.instead = async ({ method, key }) => (method === 'GET' ? [200, looks[key]] : void (await pause(200)));
    service.held.set('b', { token: 'of another', number: 1, end: Infinity });
    const told = [];
    const onWait = (wait) => (told.push(wait), service.held.delete('b'));
    await client.withLock(['b', 'a'], { wait: 60, owner: 'me', onWait }, () => {});
    assert.deepEqual([told[0].key, told[0].owner, told[0].ahead], ['b', 'other', 1]);
    assert.deepEqual(service.seen.filter(({ method }) => method === 'GET').map(({ key }) => key).slice(0, 2), ['a', 'b']);
    Object.assign(PAUSES, { first: 1000 });
});

test('another holder is LockBusy, and null from tryLock', async () => {
    service.held.set('a', { token: 'x', number: 1, end: Infinity });
    await assert.rejects(client.withLock('a', () => assert.fail()), (error) =>
        error instanceof LockBusy && error.owner === 'other' && error.retryAfter === 1.5 && /client\.test/.test(error.stack));
    assert.equal(await client.tryLock('a', { wait: 0.4 }), null);
    assert.equal(new Set(service.seen.map((one) => one.token)).size, 2);
});

test('the error of the work comes out, and is the cause of LeaseLost', async () => {
    const own = new Error('own');
    await assert.rejects(client.withLock('a', () => { throw own; }), (error) => error === own);
    assert.equal(service.held.size, 0);
    await assert.rejects(client.withLock('a', { ttl: 0.6 }, async ({ signal }) => {
        service.held.clear();
        await until(() => signal.aborted);
        throw own;
    }), isLost(own));
    // The signal's reason is that very error.
    await assert.rejects(client.withLock('a', { ttl: 0.6 }, async ({ signal }) => {
        service.held.clear();
        await until(() => signal.aborted);
        signal.throwIfAborted();
    }), isLost(undefined));
});

test('work that ignores the signal never ends as a success', async () => {
    service.instead = ({ method }) => (method === 'PUT' ? [503, {}] : undefined);
    let told = 0;
    await assert.rejects(client.withLock('a', { ttl: 1 }, async ({ signal, remaining }) => {
        signal.addEventListener('abort', () => (told = performance.now()));
        await pause(1500);
        return 'done';
    }), (error) => isLost(undefined)(error) && /503/.test(error.message));
    assert.ok(told > 0);
});

test('a lease that a max_hold cuts to less than the margin is one until its middle', async () => {
    service.instead = ({ method, key, token }) => {
        if (method !== 'POST') return [502, {}];
        service.held.set(key, { token, number: 1, end: Date.now() + 2000 });
        return [201, { key, token, fencing_token: 1, ttl_ms: 2000, waited_ms: 0, capped: true }];
    };
    await assert.rejects(client.withLock('a', { ttl: 60 }, async ({ signal, stillMine, remaining }) => {
        assert.ok(stillMine() && !signal.aborted);
        await until(() => signal.aborted);
        assert.ok(service.held.get('a').end > Date.now(), 'told after the end');
    }), (error) => isLost(undefined)(error) && /max_hold/.test(error.message));
});

test('in a blocked event loop stillMine() and remaining() know of a loss', async () => {
    const source = `
        import { createServer } from 'node:http';
        import { parentPort } from 'node:worker_threads';
        const server = createServer((request, response) => {
            const [token, key] = [request.headers['lock-token'], 'a'];
            const isGrant = request.method === 'POST';
            response.writeHead(isGrant ? 201 : 409);
            response.end(JSON.stringify(isGrant ? { key, token, fencing_token: 1, ttl_ms: 3000, waited_ms: 0 }
                : { code: 'lock_lost', type: 'urn:lockkeeper:lock_lost', detail: 'gone' }));
        }).listen(0, '127.0.0.1', () => parentPort.postMessage(server.address().port));`;
    const other = new Worker(new URL(`data:text/javascript,${encodeURIComponent(source)}`));
    const port = await new Promise((resolve) => other.once('message', resolve));
    await assert.rejects(new LockClient(`http://127.0.0.1:${port}`).withLock('a', { ttl: 3 }, (lease) => {
        assert.ok(lease.stillMine());
        const began = performance.now();
        while (lease.stillMine()) assert.ok(performance.now() - began < 2500, 'not told within two thirds');
        assert.equal(lease.remaining(), 0);
    }), (error) => error instanceof LeaseLost && /gone/.test(error.message));
    await other.terminate();
});

test('a signal gives up a claim with its own reason, at any moment', async () => {
    const reason = new Error('enough');
    await assert.rejects(client.withLock('a', { signal: AbortSignal.abort(reason) }, () => assert.fail()), (e) => e === reason);
    assert.equal(service.seen.length, 0);
    for (let round = 0; round < 60; round++) {
        service.instead = async ({ method }) => void (method === 'POST' && (await pause(5)));
        const control = new AbortController();
        setTimeout(() => control.abort(reason), Math.random() * 14);
        const work = ({ signal }) => pause(100, undefined, { signal });
        await assert.rejects(client.withLock('a', { signal: control.signal }, work), (error) =>
            error === reason || (error.name === 'AbortError' && error.cause === reason));
        await until(() => service.held.size === 0); // It may be withdrawn behind its caller.
    }
});

test('a superseded claim asks again, and gives up after three times', async () => {
    for (const times of [2, 3]) {
        service.seen.length = 0;
        let left = times;
        service.instead = ({ method }) => (method === 'POST' && left-- > 0 ? service.problem(409, 'superseded') : undefined);
        const began = performance.now();
        const claim = client.withLock('a', { wait: 5 }, () => 'done');
        await (times === 2 ? claim : assert.rejects(claim, WaitCancelled));
        assert.ok(performance.now() - began > 1990);
        assert.equal(service.count('POST'), 3);
        await until(() => service.count('DELETE') > 0);
    }
});

test('a lease of an earlier request is replaced, also if that answer is lost', async () => {
    service.last = 100;
    service.instead = ({ method, key, token }) => {
        if (method !== 'POST' || service.count('POST') > 2) return undefined;
        if (service.count('POST') === 2) return service.held.set(key, { token, number: 101, end: Infinity }), [0];
        service.held.set(key, { token, number: 7, end: Infinity });
        return service.problem(409, 'lock_held', { mine: true, fencing_token: 7 });
    };
    await client.withLock('a', ({ fencingToken }) => assert.equal(fencingToken, 101));
    const named = service.seen.filter((one) => one.method === 'POST').map((one) => one.body.fencing_token);
    assert.deepEqual(named, [undefined, 7, 7, 101]);
    assert.equal(service.held.size, 0);
});

test('a claim that names a lease leaves nothing if it is refused', async () => {
    service.instead = ({ method, key, token, body }) => {
        if (method !== 'POST') return undefined;
        if (body.fencing_token) return service.problem(409, 'lock_held');
        service.held.set(key, { token, number: 7, end: Infinity });
        return service.problem(409, 'lock_held', { mine: true, fencing_token: 7 });
    };
    await assert.rejects(client.withLock('a', () => assert.fail()), LockBusy);
    await until(() => service.held.size === 0);
});

test('the lease that a late request has begun is released', async () => {
    for (const isTold of [false, true]) {
        await assert.rejects(client.withLock('a', { ttl: 0.9 }, async ({ token, signal }) => {
            service.held.set('a', { token, number: 55, end: Infinity });
            if (isTold) await until(() => signal.aborted);
        }), isLost(undefined));
        await until(() => service.held.size === 0);
    }
});

test('a silent service is told 5 seconds after the request, and is asked again before', async () => {
    service.instead = () => new Promise(() => {});
    const began = performance.now();
    await assert.rejects(client.tryLock('a', { wait: 0.5 }), ServiceUnavailable);
    assert.ok(performance.now() - began > 4900);
    await until(() => service.count('POST') >= 2 && service.count('DELETE') >= 1);
});

test('a time limit of the caller holds with a silent service, in line and in the work', async () => {
    for (const silent of [['POST', 'DELETE'], ['DELETE']]) {
        let speak;
        const silence = new Promise((resolve) => (speak = resolve));
        service.instead = async ({ method }) => void (silent.includes(method) && (await silence));
        const control = new AbortController();
        const reason = new Error('enough');
        const claim = client.withLock('a', { wait: Infinity, signal: control.signal }, async ({ signal }) => {
            control.abort(reason);
            await until(() => signal.aborted);
            throw reason;
        });
        await until(() => service.count('POST') > 0);
        const { emit } = worker;
        const reports = [];
        worker.emit = (name, ...rest) => (reports.push(rest[0]?.is), emit.call(worker, name, ...rest));
        if (silent.length === 2) control.abort(reason);
        // The service speaks only when the caller is back, which is before the end of the withdrawal.
        await assert.rejects(claim, (error) => error === reason);
        assert.deepEqual(reports.filter((is) => is === 'released' || is === 'unreached'), []);
        delete worker.emit;
        speak();
        await until(() => service.held.size === 0 && service.count('DELETE') > 0);
        Object.assign(service, { seen: [], instead: () => undefined });
    }
});

test('a claim that is withdrawn behind its caller keeps the process alive', async () => {
    service.instead = async ({ method }) => void (method === 'POST' && (await pause(1000)));
    const script = `
        import { LockClient } from ${JSON.stringify(new URL('../dist/index.js', import.meta.url).href)};
        const client = new LockClient(${JSON.stringify(service.url)});
        await client.tryLock('a', { signal: AbortSignal.timeout(100) }).catch(() => console.log('back'));`;
    const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
    await new Promise((resolve) => child.stdout.once('data', resolve));
    assert.equal(child.exitCode, null);
    assert.equal(await new Promise((resolve) => child.on('exit', resolve)), 0);
    assert.equal(service.held.size, 0);
    assert.ok(service.count('POST') === 1 && service.count('DELETE') > 1);
});

test('work that succeeds is judged by its release, also after the signal', async () => {
    service.instead = async ({ method }) => method === 'DELETE' ? (await pause(500), service.problem(409, 'lock_lost')) : undefined;
    const control = new AbortController();
    await assert.rejects(client.withLock('a', { signal: control.signal }, () => control.abort()), LeaseLost);
});

test('a claim that never reached the service gives up, and one that stood in line waits', async (t) => {
    t.after(() => (limits = undefined));
    const nobody = await fake();
    nobody.close();
    const usual = { withoutWait: 600_000, beforeLine: 600_000, first: 0, next: 600_000 };
    for (const [wait, most, more] of [['1h', 'beforeLine', '35\\d\\d s more '], [Infinity, 'beforeLine', ''], [0.1, 'withoutWait', ''], [0, 'withoutWait', '']]) {
        limits = { ...usual, [most]: 800 };
        const told = [];
        const claim = new LockClient({ url: nobody.url, warn: (message) => told.push(message) }).tryLock('a', { wait });
        const why = `no answer from ${nobody.url}: connection refused`;
        await assert.rejects(claim, { name: 'ServiceUnavailable', message: `'a' was not acquired: ${why}; retry later` });
        assert.equal(told.length, 1);
        assert.match(told[0], new RegExp(`^waiting ${more}for 'a', retrying: ${why}$`));
    }
    limits = { ...usual, beforeLine: 200, withoutWait: 100, first: 600_000 };
    const answers = [service.problem(409, 'lock_held'), ...Array(5).fill([502, {}])];
    service.instead = ({ method }) => (method === 'POST' ? answers.shift() : undefined);
    assert.equal(await client.withLock('a', { wait: 600 }, () => 'done'), 'done');
});

test('a wait is told when it has begun and again later', async (t) => {
    const usual = { ...PAUSES };
    t.after(() => Object.assign(PAUSES, usual));
    Object.assign(PAUSES, { first: 50, retry: 50, next: 200 });
    for (const [queue, owner, ahead] of [[[{ owner: 'first' }, { owner: 'me' }], 'other', 1], [[{ owner: 'me' }, { owner: 'me' }], undefined, undefined], [undefined, undefined, undefined]]) {
        const looks = [[200, { key: 'a', held: true, waiters: 0 }], [502, {}]];
        service.instead = ({ method }) => method === 'GET' ? looks.shift() ?? [200, { key: 'a', held: true, owner, waiters: 2, queue }] : undefined;
        service.held.set('a', { token: 'x', number: 1, end: Infinity });
        service.seen.length = 0;
        const told = [];
        const claim = client.withLock('a', { wait: 60, owner: 'me', onWait: (wait) => told.push(wait) }, () => 'done');
        await until(() => told.length > 1);
        for (const wait of told.slice(0, 2)) assert.deepEqual({ ...wait, waited: 0 }, { key: 'a', owner, ahead, waiters: 2, waited: 0 });
        assert.ok(told[0].waited >= 0.05 && told[1].waited >= told[0].waited + 0.2);
        service.held.clear();
        assert.equal(await claim, 'done');
        assert.equal(service.seen.find((one) => one.method === 'GET').path, '/locks/a?waiters=100');
    }
    service.seen.length = 0;
    for (const wait of [0, 60]) await client.withLock('a', { wait, onWait: () => assert.fail() }, () => pause(150));
    assert.equal(service.count('GET'), 0); // Neither without a wait nor after the grant.
    service.held.set('a', { token: 'x', number: 1, end: Infinity });
    const claim = client.withLock('a', { wait: 60, onWait: () => { throw new Error('own'); } }, () => 'done');
    await until(() => warnings.length > 0);
    assert.equal(warnings[0], "'a': the callback for its wait failed: Error: own");
    service.held.clear();
    assert.equal(await claim, 'done');
});

test('the end of an absence, and its warnings', () => {
    const [refused, silent, busy] = [{ status: 0, code: '', isSent: false }, { status: 0, code: '', isSent: true }, { status: 409, code: 'lock_held' }];
    const [page, bad] = [{ status: 504, code: '', isSent: true }, { status: 502, code: '', isSent: true }];
    for (const [before, answer, lasted, over, expected] of [
        [undefined, refused, 0, 3600, 60], [undefined, refused, 0, 30, 30], [undefined, refused, 0, 0, 5], [undefined, refused, 0, 3, 5],
        [busy, refused, 0, 3600, 3600], [busy, refused, 0, 0, 5], [undefined, silent, 25, 3600, 35], [undefined, silent, 0.9, 3600, 60],
        [undefined, silent, 1, 3600, 3600], [undefined, page, 10, 3600, 3600], [undefined, bad, 10, 3600, 60], [undefined, refused, 4, 3600, 60],
    ]) {
        const absence = new Absence(USUAL);
        if (before) assert.equal(absence.notes(before, 100_000, 0, 100_000), false);
        const at = 100_000 + lasted * 1000;
        assert.equal(absence.notes(answer, 100_000, 20_000, at), true);
        assert.equal(absence.end(at + over * 1000) - at, expected * 1000, JSON.stringify([before, answer, lasted, over]));
    }
    const [absence, told] = [new Absence(USUAL), []];
    for (let at = 100; at < 300; at++) {
        absence.notes(bad, at * 1000, 0, at * 1000);
        if (absence.isDue(at * 1000)) told.push(at - 100);
    }
    assert.deepEqual(told, [5, 65, 125, 185]);
});

test('addresses are tried side by side, and a slow one is waited for', async () => {
    const server = createNet((socket) => socket.end()).listen(0, '127.0.0.1');
    await new Promise((resolve) => server.once('listening', resolve));
    const { port } = server.address();
    const silent = () => new Socket(); // It never connects.
    const slow = () => {
        const socket = new Socket();
        setTimeout(() => socket.destroyed || socket.connect(port, '127.0.0.1'), 600);
        return socket;
    };
    const kinds = { silent, slow, quick: () => connect(port, '127.0.0.1'), refused: () => connect(1, '127.0.0.1') };
    for (const [addresses, expected] of [
        ['silent quick', 'quick'], ['silent silent silent quick', 'quick'], ['refused refused quick', 'quick'], ['slow silent silent', 'slow'],
        ['slow refused', 'slow'], ['silent slow', 'slow'],
    ]) {
        const made = [];
        const { socket, address } = await firstToAccept(addresses.split(' '), (one) => (made.push(kinds[one]()), made.at(-1)));
        assert.equal(address, expected, addresses);
        assert.deepEqual(made.filter((one) => !one.destroyed), [socket]);
        socket.destroy();
    }
    await assert.rejects(firstToAccept([], () => assert.fail()), /the name has no address/);
    await assert.rejects(firstToAccept(['refused', 'refused'], kinds.refused), { code: 'ECONNREFUSED' });
    await assert.rejects(firstToAccept(['silent'], silent), /no address accepts/);
    server.close();
});

test('the package loads by `require` as well, as in Jest', async () => {
    const script = `
        const { LockClient } = require(${JSON.stringify(fileURLToPath(new URL('../dist/index.js', import.meta.url)))});
        new LockClient(${JSON.stringify(service.url)}).withLock('a', ({ fencingToken }) => console.log(fencingToken));`;
    for (const program of [process.execPath, ...(process.env.BUN ? [process.env.BUN] : [])]) {
        const child = spawn(program, ['-e', script], { stdio: ['ignore', 'pipe', 'inherit'] });
        let out = '';
        child.stdout.on('data', (part) => (out += part));
        assert.equal(await new Promise((resolve) => child.on('close', resolve)), 0, program);
        assert.match(out, /^\d+\n$/);
        assert.equal(service.held.size, 0);
    }
});

test('`await using` releases, and tells of a loss', async (t) => {
    if (!Symbol.asyncDispose) return t.skip('not in this version of Node');
    const lease = await client.tryLock('a');
    await lease[Symbol.asyncDispose]();
    assert.equal(service.held.size, 0);
    const lost = await client.tryLock('a');
    service.held.clear();
    await assert.rejects(lost[Symbol.asyncDispose](), LeaseLost);
});

/** A proxy, with the requests and tunnels that it was asked for. */
async function proxy(status = 200) {
    const asked = [];
    const server = createHttp((request, response) => {
        asked.push([request.method, request.url, request.headers['proxy-authorization']]);
        const { port, pathname, search } = new URL(request.url);
        const { method, headers } = request;
        request.pipe(askHttp({ host: '127.0.0.1', port, path: pathname + search, method, headers }, (answer) => {
            response.writeHead(answer.statusCode, answer.headers);
            answer.pipe(response);
        }));
    });
    server.on('connect', ({ url, headers }, socket) => {
        asked.push(['CONNECT', url, headers['proxy-authorization']]);
        if (status !== 200) return socket.end(`HTTP/1.1 ${status} By the test\r\n\r\n`);
        const other = connect(Number(url.split(':').at(-1)), '127.0.0.1', () => {
            socket.write('HTTP/1.1 200 By the test\r\n\r\n');
            socket.pipe(other).pipe(socket);
        });
        for (const one of [socket, other]) one.on('error', () => {});
    });
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    const close = () => (server.close(), server.closeAllConnections?.());
    return { asked, close, url: `http://127.0.0.1:${server.address().port}` };
}

test('a proxy is asked for http://, and tunnels https://', async (t) => {
    const [own, refusing] = [await proxy(), await proxy(407)];
    t.after(() => [own, refusing].forEach((one) => one.close()));
    const named = own.url.replace('//', '//jane:s%2Fcret@');
    const basic = `Basic ${Buffer.from('jane:s/cret').toString('base64')}`;
    await new LockClient({ url: service.url, proxy: named }).withLock('a', () => {});
    assert.deepEqual(own.asked[0], ['POST', `${service.url}/locks/a`, basic]);
    assert.match(own.asked[1].join(' '), /^DELETE .*\/locks\/a\?fencing_token=\d+ /);
    const secure = certificate('IP:127.0.0.1');
    if (!secure) return t.skip('no openssl');
    const other = await fake({ make: (handler) => createTls({ key: readFileSync(secure.key), cert: readFileSync(secure.cert) }, handler) });
    t.after(() => other.close());
    const url = `https://127.0.0.1:${other.port}`;
    own.asked.length = 0;
    assert.equal(await new LockClient({ url, ca: secure.cert, proxy: named }).withLock('a', () => 'done'), 'done');
    assert.deepEqual(own.asked, [['CONNECT', `127.0.0.1:${other.port}`, basic]]);
    assert.equal(other.seen.some((one) => one.headers['proxy-authorization']), false);
    const told = `the proxy ${refusing.url.replace('//', '//jane@').replace(/.*@/, '...@')} makes no connection to 127.0.0.1:${other.port}: it answers 407 By the test`;
    const refused = new LockClient({ url, ca: secure.cert, proxy: refusing.url.replace('//', '//jane@') });
    await assert.rejects(refused.tryLock('a', { wait: Infinity }), { name: 'RequestRefused', message: `no answer from ${url}: ${told}` });
    assert.throws(() => new LockClient({ proxy: 'https://a:s3cret@b' }), { message: '`...@b` is not the URL of a proxy: write it like http://proxy:3128' });
});

test('the proxy of the environment is used as by other programs', (t) => {
    const own = Object.keys(process.env).filter((name) => /_proxy$/i.test(name)).map((name) => [name, process.env[name]]);
    t.after(() => own.forEach(([name, value]) => (process.env[name] = value)));
    for (const [env, protocol, host, expected] of [
        [{ HTTPS_PROXY: 'http://p:1' }, 'https:', 'locks.example', 'p:1'], [{ HTTPS_PROXY: 'http://p:1' }, 'http:', 'locks.example'],
        [{ http_proxy: 'p' }, 'http:', 'locks.example', 'p:80'], [{ ALL_PROXY: 'p:2' }, 'https:', 'locks.example', 'p:2'],
        [{ HTTPS_PROXY: 'p' }, 'https:', 'localhost'], [{ HTTPS_PROXY: 'p' }, 'https:', '127.0.0.1'], [{}, 'https:', 'locks.example'],
        [{ HTTPS_PROXY: 'p', NO_PROXY: 'a.example, .example' }, 'https:', 'locks.example'], [{ HTTPS_PROXY: 'p', NO_PROXY: '*' }, 'https:', 'x'],
        [{ HTTPS_PROXY: 'p', NO_PROXY: 'locks.example:80' }, 'https:', 'locks.example', 'p:80'],
        [{ HTTPS_PROXY: 'p', NO_PROXY: 'locks.example:443' }, 'https:', 'locks.example'],
        [{ HTTPS_PROXY: 'p', NO_PROXY: 'example' }, 'https:', 'otherexample', 'p:80'],
        [{ HTTP_PROXY: 'p', REQUEST_METHOD: 'GET' }, 'http:', 'locks.example'],
    ]) {
        for (const name of Object.keys(process.env)) if (/_proxy$/i.test(name)) delete process.env[name];
        Object.assign(process.env, env);
        const found = proxyOf(undefined, protocol, host, protocol === 'https:' ? 443 : 80);
        assert.equal(found && `${found.hostname}:${found.port}`, expected, JSON.stringify([env, protocol, host]));
        for (const name of Object.keys(env)) delete process.env[name];
    }
    assert.equal(proxyOf('', 'https:', 'locks.example', 443), undefined);
    assert.equal(proxyOf('p', 'http:', 'localhost', 80).hostname, 'p');
});

test('connections are kept, and a repeat after a failure has a new one', async () => {
    const ports = () => new Set(service.seen.map((one) => one.port)).size;
    await client.withLock('a', () => {}); // The worker and the program have connections of their own.
    await client.get('a');
    service.seen.length = 0;
    for (let i = 0; i < 5; i++) await client.withLock('a', () => {});
    const leaks = [];
    const note = (warning) => leaks.push(warning.message);
    process.on('warning', note);
    for (let i = 0; i < 20; i++) await client.get('a');
    process.off('warning', note);
    assert.deepEqual(leaks, []); // Such as too many listeners of one socket.
    assert.ok(ports() <= 2, `${ports()} connections`);
    service.seen.length = 0;
    let lost = 2;
    service.instead = ({ method }) => (method === 'POST' && lost-- > 0 ? [0] : undefined);
    await client.withLock('a', () => {});
    assert.equal(ports(), 3);
    // A forced release is asked once: it must not meet a connection that the service is closing.
    await client.get('a');
    service.seen.length = 0;
    await client.get('a');
    await client.forceRelease('a');
    assert.equal(ports(), 2);
});

test('troubles that stay are told at once, in the words of the command line', async () => {
    const refused = (url, message, more) => assert.rejects(new LockClient({ url, ...more }).withLock('a', { wait: Infinity }, () => assert.fail()),
        (error) => (assert.equal(error.message, message), error instanceof RequestRefused));
    const secure = service.url.replace('http:', 'https:');
    await refused(secure, `no answer from ${secure}: no TLS is spoken there: is it http://?`);
    for (const [answer, message, more] of [
        [[404, {}], `the answer is 404 and not from lockkeeper; check the URL, ${service.url}`],
        [service.problem(401, 'unauthenticated'), 'unknown API key: look at `apiKey`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE', { apiKey: 's3cret' }],
        [service.problem(401, 'unauthenticated'), 'the service asks for an API key: set `apiKey`, LOCKKEEPER_API_KEY or LOCKKEEPER_API_KEY_FILE'],
        [service.problem(403, 'forbidden'), 'by the test: forbidden (403 forbidden); use an API key with this permission and prefix'],
        [service.problem(400, 'invalid_request'), 'by the test: invalid_request (400 invalid_request); correct the request'],
    ]) {
        service.instead = () => answer;
        await refused(service.url, message, more);
    }
    service.instead = () => service.problem(409, 'wait_cancelled');
    await assert.rejects(client.tryLock('a'), { name: 'WaitCancelled', message: "the claim on 'a' has ended elsewhere: by the test: wait_cancelled (409 wait_cancelled); nothing is held" });
});

test('while a file has no API key the last one counts', async () => {
    const file = join(directory, 'rewritten');
    writeFileSync(file, 's3cret');
    const own = new LockClient({ url: service.url, apiKeyFile: file });
    for (const text of ['', '\n', '\ufeffs3cret', 'two\nlines', 's3cret\u00a0', undefined]) {
        await own.withLock('a', () => (text === undefined ? rmSync(file) : writeFileSync(file, text)));
        assert.equal(service.held.size, 0, text);
        assert.equal(service.seen.at(-1).headers.authorization, 'Bearer s3cret');
    }
    await own.withLock('a', () => writeFileSync(file, 'other')); // Acquired without a file.
    await own.withLock('a', () => rmSync(file));
    assert.equal(service.seen.at(-1).headers.authorization, 'Bearer other');
    assert.equal(service.held.size, 0);
});

test('work that is a generator is refused, as it would have no lease', async () => {
    for (const work of [async function* () { assert.fail(); }, function* () { assert.fail(); }]) {
        await assert.rejects(client.withLock('a', work), { name: 'TypeError', message: /the work is a generator, which goes on after its call/ });
        assert.equal(service.held.size, 0);
    }
});

test('an API key is read for each request, is one line, and shows nowhere', async () => {
    const file = join(directory, 'rotated');
    assert.throws(() => new LockClient({ apiKeyFile: file }), { name: 'TypeError', message: `the API key in ${file} cannot be read: no such file or directory` });
    writeFileSync(file, '\n');
    assert.throws(() => new LockClient({ apiKeyFile: file }), { message: `${file} has no API key` });
    for (const [apiKey, told] of [['two\nlines', 'line break'], ['s3cret\u00e9', 'visible ASCII']]) {
        assert.throws(() => new LockClient({ apiKey }), (error) => error.message.includes(told) && !error.message.includes(apiKey));
    }
    writeFileSync(file, 's3cret-1\r\n');
    const own = new LockClient({ url: service.url, apiKeyFile: file });
    const lease = await own.tryLock('a', { ttl: 1 });
    writeFileSync(file, 's3cret-2\n');
    await until(() => service.seen.at(-1).headers.authorization === 'Bearer s3cret-2');
    rmSync(file); // For a moment: no lease is lost by that.
    await pause(500);
    assert.ok(lease.stillMine());
    await own.get('a');
    writeFileSync(file, 's3cret-3');
    await lease.release();
    for (const one of [own, lease, new LockClient({ url: service.url, apiKey: 's3cret' })]) {
        const text = inspect(one, { showHidden: true, depth: 9, getters: true }) + JSON.stringify(one);
        assert.ok(!text.includes('s3cret'), text);
    }
});

test('a worker that dies costs its leases and claims, which are told, and the next one has another', async () => {
    let told;
    await assert.rejects(client.withLock('a', { ttl: 1 }, async ({ signal }) => {
        await worker.terminate();
        await until(() => signal.aborted);
        told = service.held.get('a').end - Date.now();
    }), (error) => isLost(undefined)(error) && /terminated/.test(error.message));
    assert.ok(told > 0, 'told after the end');
    service.held.set('b', { token: 'x', number: 1, end: Infinity });
    const claim = client.withLock('b', { wait: 10 }, () => assert.fail());
    await until(() => service.seen.some((one) => one.key === 'b'));
    await Promise.all([worker.terminate(), assert.rejects(claim, ServiceUnavailable)]);
    assert.equal(await client.withLock('c', () => 'done'), 'done');
});

test('without the file of the worker the error says so', async () => {
    cpSync(new URL('../dist', import.meta.url), join(directory, 'dist'), { recursive: true });
    rmSync(join(directory, 'dist/worker.js'));
    writeFileSync(join(directory, 'package.json'), '{"type":"commonjs"}');
    const bundled = await import(join(directory, 'dist/index.js'));
    const claim = new bundled.LockClient(service.url).withLock('a', () => assert.fail());
    await assert.rejects(claim, (error) => error instanceof bundled.ServiceUnavailable && /leave lockkeeper out/.test(error.message));
});

test('a release that reaches nobody is a warning, and one that finds nothing is LeaseLost', async () => {
    service.instead = ({ method }) => (method === 'DELETE' ? [403, {}] : undefined);
    assert.equal(await client.withLock('a', () => 'done'), 'done');
    assert.match(warnings[0], /^'a' is not released; the lease ends by its TTL: /);
    service.instead = () => undefined;
    service.held.clear();
    await assert.rejects(client.withLock('a', () => service.held.clear()), isLost(undefined));
});

test('an uncaught exception and the end of the program release', async () => {
    for (const end of ['setTimeout(() => { throw new Error("uncaught"); }, 50)', '0', 'Promise.reject(new Error("x"))']) {
        const script = `
            import { LockClient } from ${JSON.stringify(new URL('../dist/index.js', import.meta.url).href)};
            const lease = await new LockClient(${JSON.stringify(service.url)}).tryLock('a');
            if (!lease) process.exit(9);
            ${end};`;
        const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: 'ignore' });
        const code = await new Promise((resolve) => child.on('exit', resolve));
        assert.equal(code, end === '0' ? 0 : 1);
        assert.equal(service.held.size, 0, end);
    }
});

test('a lease of tryLock is renewed until its release', async () => {
    const lease = await client.tryLock('a', { ttl: 1 });
    await pause(1500);
    assert.ok(lease.stillMine() && lease.remaining() > 0 && lease.remaining() <= 1);
    await lease.release();
    await lease.release();
    assert.equal(service.count('DELETE'), 1);
    assert.ok(!lease.stillMine() && lease.remaining() === 0 && !lease.signal.aborted);
});

test('looks are spelled as in TypeScript, lists have pages, and a forced release is asked once', async () => {
    const status = await client.get('a');
    assert.deepEqual(status, { key: 'a', held: false, waiters: 0, ttlMs: 5 });
    const one = (key) => ({ key, held: true, waiters: 0, leases: [{ slots: 2, fencing_token: 3 }] });
    service.instead = ({ query }) =>
        [200, query.get('cursor') ? { locks: [one('q')] } : { locks: [one('p')], cursor: 'next' }];
    const locks = [];
    for await (const lock of client.list('p ')) locks.push(lock);
    assert.deepEqual(locks.map((lock) => [lock.key, lock.leases[0].fencingToken]), [['p', 3], ['q', 3]]);
    assert.equal(service.seen.at(-1).query.get('prefix'), 'p ');
    service.instead = () => service.problem(409, 'lock_lost');
    assert.equal(await client.forceRelease('a'), null);
    service.seen.length = 0;
    service.instead = () => [0];
    await assert.rejects(client.forceRelease('a', { reason: 'OPS-7' }), (error) =>
        error instanceof ServiceUnavailable && error.outcome === 'unknown');
    assert.equal(service.count('DELETE'), 1);
    assert.equal(service.seen[0].path, '/admin/locks/a?reason=OPS-7');
});

test('settings come from the environment: unix socket, API key in a file', async () => {
    const socket = join(directory, 'socket');
    const other = await fake({ listen: [socket] });
    writeFileSync(join(directory, 'key'), 'secret\n');
    Object.assign(process.env, { LOCKKEEPER_URL: `unix:${socket}`, LOCKKEEPER_API_KEY_FILE: join(directory, 'key') });
    await new LockClient().withLock('a', () => {});
    delete process.env.LOCKKEEPER_URL;
    delete process.env.LOCKKEEPER_API_KEY_FILE;
    assert.deepEqual(other.seen.map((one) => one.headers.authorization), ['Bearer secret', 'Bearer secret']);
    other.close();
});

test('https trusts the authority of `ca`, and nothing without it', async (t) => {
    const made = certificate('IP:127.0.0.1');
    if (!made) return t.skip('no openssl');
    const { key, cert } = made;
    const other = await fake({ make: (handler) => createTls({ key: readFileSync(key), cert: readFileSync(cert) }, handler) });
    const url = `https://127.0.0.1:${other.port}`;
    assert.equal(await new LockClient({ url, ca: cert }).withLock('a', () => 'done'), 'done');
    t.after(() => other.close());
    const isRefused = (why) => ({ name: 'RequestRefused', message: `no answer from ${why}` });
    const untrusted = isRefused(`${url}: its certificate is not signed by an authority that is trusted here: name the file of`
        + ' that authority (`ca`, LOCKKEEPER_CA)');
    await assert.rejects(new LockClient({ url }).get('a'), untrusted);
    await assert.rejects(new LockClient({ url }).tryLock('a', { wait: Infinity }), untrusted);
    const named = url.replace('127.0.0.1', 'localhost');
    await assert.rejects(new LockClient({ url: named, ca: cert }).get('a'), (error) => error instanceof RequestRefused
        && error.message.startsWith(`no answer from ${named}: its certificate is not accepted: Hostname/IP does not match`));
    for (const [own, told] of [
        [{ ca: key }, `\`ca\`: ${key} has no certificate: it needs a part -----BEGIN CERTIFICATE-----`],
        [{ ca: `${key}.none` }, `\`ca\`: cannot read ${key}.none: no such file or directory; name a PEM file that this user may read`],
        [{ cert }, '`cert` and `certKey` belong together: set both, or neither'],
        [{ cert: key, certKey: key }, `\`cert\`: ${key} has no certificate: it needs a part -----BEGIN CERTIFICATE-----`],
    ]) assert.throws(() => new LockClient({ url, ...own }), { name: 'TypeError', message: told });
});

test('what fails in the thread is an error of that claim alone', async () => {
    const lease = await client.tryLock('b');
    const odd = new LockClient({ url: service.url, tokenPrefix: 'a\nb' });
    await assert.rejects(odd.withLock('a', () => assert.fail()), (error) => error instanceof ServiceUnavailable && error.key === 'a');
    assert.ok(lease.stillMine());
    await lease.release();
});

test('the first lock of the page runs as it is printed', async () => {
    const [, code] = /```ts\n(.*?)```/s.exec(readFileSync(new URL('../README.md', import.meta.url), 'utf8'));
    const own = join(directory, 'node_modules/lockkeeper');
    for (const name of ['dist', 'package.json']) cpSync(new URL(`../${name}`, import.meta.url), join(own, name), { recursive: true });
    writeFileSync(join(directory, 'first.mjs'), code.replace('http://localhost:8080', service.url));
    const child = spawn(process.execPath, [join(directory, 'first.mjs')], { stdio: ['ignore', 'pipe', 'inherit'] });
    let out = '';
    child.stdout.on('data', (part) => (out += part));
    assert.equal(await new Promise((resolve) => child.on('close', resolve)), 0);
    assert.match(out, /^part 1 .*\npart 2 .*\npart 3 with fencing token \d+\n$/);
    assert.equal(service.held.size, 0);
});

test('the package has no file but its own', () => {
    const root = fileURLToPath(new URL('..', import.meta.url));
    const listed = execFileSync('npm', ['pack', '--dry-run', '--json', '--ignore-scripts'], { cwd: root, stdio: ['ignore', 'pipe', 'ignore'] });
    const files = JSON.parse(listed).flatMap?.((one) => one.files) ?? Object.values(JSON.parse(listed))[0].files;
    for (const { path } of files) assert.match(path, /^(dist\/\w+\.(js|d\.ts)|package\.json|README\.md|LICENSE-\w+)$/);
});
