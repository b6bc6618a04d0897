// Every call of the generated TypeScript client that applications need, and every way in which it fails.
// Usage: node client.js BASE_URL API_KEY KEY...

import { AdminApi, Configuration, LockHeldFromJSON, LocksApi, ProblemFromJSON, ResponseError } from './sdk/typescript';

declare const process: { argv: string[]; exitCode: number };

async function main(basePath: string, accessToken: string, keys: string[]): Promise<void> {
    const service = new Configuration({ basePath, accessToken });
    const locks = new LocksApi(service);
    for (const key of keys) {
        await lease(locks, key);
        await force(locks, new AdminApi(service), key);
    }
    await refusals(locks);
    const stranger = new LocksApi(new Configuration({ basePath, accessToken: 'none of them' }));
    const problem = ProblemFromJSON(await refused(401, () => stranger.acquireLock({ key: 'report' })));
    same('unauthenticated', problem.code);
    console.log('as it has to be');
}

/** A lease from its beginning to its end. */
async function lease(locks: LocksApi, key: string): Promise<void> {
    const grant = await locks.acquireLock({ key, acquireRequest: { ttlMs: 30000, owner: 'ts é' } });
    same([key, 0, 'ts é'], [grant.key, grant.waitedMs, grant.owner]);
    same(true, grant.ttlMs >= 15000 && grant.ttlMs <= 30000);

    const second = () => locks.acquireLock({ key, acquireRequest: { waitMs: 50 } });
    const held = LockHeldFromJSON(await refused(409, second));
    same(['lock_held', 'ts é'], [held.code, held.owner]);
    same(true, held.retryAfterMs! > 0 && held.retryAfterMs! <= 30000 && held.waitedMs >= 50);

    const mine = { key, lockToken: grant.token };
    const longer = await locks.refreshLock({ ...mine, refreshRequest: { ttlMs: 60000 } });
    same([true, grant.fencingToken], [minute(longer.ttlMs), longer.fencingToken]);
    same(true, minute((await locks.refreshLock(mine)).ttlMs));

    same(true, (await locks.getLock(mine)).mine);
    const look = await locks.getLock({ key });
    same([key, true, undefined], [look.key, look.held, look.mine]);
    const page = await locks.listLocks({ prefix: key });
    same([[[key, 'ts é']], undefined], [page.locks.map((one) => [one.key, one.owner]), page.cursor]);

    same(undefined, await locks.releaseLock(mine));
    for (const again of [() => locks.releaseLock(mine), () => locks.refreshLock(mine)]) {
        same('lock_lost', ProblemFromJSON(await refused(409, again)).code);
    }
    const free = await locks.getLock({ key });
    same([false, undefined], [free.held, free.owner]);
}

/** A lease with a token of one's own, until an administrator ends it. */
async function force(locks: LocksApi, admin: AdminApi, key: string): Promise<void> {
    const acquireRequest = { token: `ts.${Date.now()}.${Math.random()}` };
    const grant = await locks.acquireLock({ key, acquireRequest });
    same(acquireRequest.token, grant.token);
    same(grant.fencingToken, (await locks.acquireLock({ key, acquireRequest })).fencingToken);
    same(grant.fencingToken, (await admin.forceReleaseLock({ key })).fencingToken);
    same('lock_lost', (await refused(409, () => admin.forceReleaseLock({ key }))).code);
}

async function refusals(locks: LocksApi): Promise<void> {
    const short = () => locks.acquireLock({ key: 'report', acquireRequest: { ttlMs: 1 } });
    const problem = ProblemFromJSON(await refused(400, short));
    same(['invalid_request', 'ttl_ms'], [problem.code, problem.field]);
    same('invalid_key', (await refused(400, () => locks.acquireLock({ key: 'a//b' }))).code);
}

/** What a call answers because it is refused. */
async function refused(status: number, call: () => Promise<unknown>): Promise<any> {
    try {
        await call();
    } catch (error) {
        if (!(error instanceof ResponseError)) throw error;
        same(status, error.response.status);
        return error.response.json();
    }
    throw new Error('no exception');
}

// A slow disk takes its time off a lease.
function minute(ttlMs: number): boolean {
    return ttlMs > 50000 && ttlMs <= 60000;
}

function same(expected: unknown, actual: unknown): void {
    const [one, other] = [expected, actual].map((value) => JSON.stringify(value));
    if (one !== other) throw new Error(`${other} is not ${one}`);
}

main(process.argv[2], process.argv[3], process.argv.slice(4)).catch((error) => {
    console.error(error);
    process.exitCode = 1;
});
