// The client: its settings, and the verbs.

import { randomBytes } from 'node:crypto';
import { hostname } from 'node:os';
import { types } from 'node:util';
import { ANSWER_TIME, USUAL } from './absence.js';
import { type Duration, backoff, millis, now, sleep } from './clock.js';
import { LeaseLost, LockBusy, errorOf } from './errors.js';
import { failureOf, send } from './http.js';
import { type ClaimedKey, checkShare, keysOf, pathOf } from './keys.js';
import { Lease, MOMENT, stayAlive } from './lease.js';
import { type Service, readApiKey, serviceOf } from './service.js';
import { type Wait, report } from './wait.js';

/** The settings of a client. What is absent comes from the environment, as for the command line. */
export interface ClientOptions {
    /** Such as 'https://locks.example' or 'unix:/run/lockkeeper/lockkeeper.sock' (LOCKKEEPER_URL). */
    url?: string;
    /** The API key, or a file that has it, read for each request (LOCKKEEPER_API_KEY, LOCKKEEPER_API_KEY_FILE). */
    apiKey?: string; apiKeyFile?: string;
    /** PEM files: the only authorities to trust; a client certificate and its key (LOCKKEEPER_CA, _CERT, _CERT_KEY). */
    ca?: string; cert?: string; certKey?: string;
    /** Such as 'http://user:password@proxy:3128'; '' is none. By default HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY. */
    proxy?: string;
    /** The name that others see; by default the host and the process id. */
    owner?: string;
    /** For services with a redis.token_prefix (LOCKKEEPER_TOKEN_PREFIX). */
    tokenPrefix?: string;
    /** Hears what is no error of the work, such as a failed release; by default process.emitWarning(). */
    warn?: (message: string) => void;
}

export interface LockOptions {
    /** How long the key stays taken if this process dies; 30 s by default. The lease is renewed every third of it. */
    ttl?: Duration;
    /** How long to wait in line, also Infinity; 0 by default. */
    wait?: Duration;
    /** Share the key with so many leases in all at most, this one included; or, as a reader, with all who share it. */
    slots?: number; shared?: boolean;
    /** How many of the slots this lease takes; 1 by default. */
    units?: number;
    /** In place of the client's. */
    owner?: string;
    /** Gives up the claim; in withLock() also tells the work to stop. */
    signal?: AbortSignal;
    /** Called a second after a wait in line has begun, and then once a minute. The API key needs the permission read. */
    onWait?: (wait: Wait) => void;
}

/** A lease as others see it; times are in milliseconds. */
export type LeaseStatus =
    { owner?: string; fencingToken?: number; ttlMs?: number; heldMs?: number; slots?: number; slot?: number };

/** The state of a key. If it is shared, `leases` has its leases. */
export type LockStatus =
    LeaseStatus & { key: string; held: boolean; waiters: number; holders?: number; leases?: LeaseStatus[] };

/** What a forced release ended: of a shared key the first lease, and their number. */
export type ForcedRelease = { key: string; owner?: string; fencingToken?: number; holders?: number };

/** A key, or several at once. */
export type LockKeys = string | readonly (string | ClaimedKey)[];

type Work<T> = (lease: Lease) => T | Promise<T>;

const OPTIONS = ['ttl', 'wait', 'slots', 'units', 'shared', 'owner', 'signal', 'onWait'];

export class LockClient {
    readonly #service: Service;
    readonly #own: ClientOptions;

    constructor(options: ClientOptions | string = {}) {
        this.#own = typeof options === 'string' ? { url: options } : options;
        this.#service = serviceOf(this.#own);
    }

    /**
     * Runs the work under a lease that is renewed meanwhile, also while the event loop is blocked, and released at the
     * end. Rejects with what the work throws; with LockBusy if others still hold the key after the wait; with LeaseLost
     * if the lease ended before the work, or the work was told that it would. A list of keys is all of them, or none;
     * { key: 'gpu', slots: 8, units: 3 } is one with its share.
     */
    withLock<T>(key: LockKeys, work: Work<T>): Promise<T>;
    withLock<T>(key: LockKeys, options: LockOptions, work: Work<T>): Promise<T>;
    async withLock<T>(key: LockKeys, first: LockOptions | Work<T>, second?: Work<T>): Promise<T> {
        const [options, work] = typeof first === 'function' ? [{}, first] : [first, second];
        if (typeof work !== 'function') throw new TypeError('withLock(key, options, work): the work is no function');
        return stayAlive(this.#acquire(key, options).then((lease) => run(lease, work, options.signal)));
    }

    /** Returns a lease, which is renewed until its release(); null if others hold the key after the wait. */
    async tryLock(key: LockKeys, options: LockOptions = {}): Promise<Lease | null> {
        return nullFor(LockBusy, this.#acquire(key, options));
    }

    /** The state of a key, which may change at once. */
    async get(key: string): Promise<LockStatus> {
        return camel(await this.#ask('GET', pathOf(key), key, (body) => body.key === key));
    }

    /** The held keys that begin with the prefix, in any order. */
    async *list(prefix = ''): AsyncGenerator<LockStatus, void, void> {
        for (let cursor: string | undefined = ''; cursor !== undefined; ) {
            const path = `/locks?${new URLSearchParams({ limit: '1000', prefix, ...(cursor && { cursor }) })}`;
            const body: any = await this.#ask('GET', path, prefix, ({ locks }) => Array.isArray(locks));
            yield* camel(body.locks);
            cursor = body.cursor;
        }
    }

    /** Ends the leases of a key, or the one with this fencing token; for administrators. Returns null without one. */
    async forceRelease(key: string, options: { reason?: string; fencingToken?: number } = {}) {
        const { reason, fencingToken: number } = options;
        const query = new URLSearchParams({ ...(reason && { reason }), ...(number && { fencing_token: `${number}` }) });
        // Asked once without the number: a repeat could end the lease of the next holder.
        const asked = this.#ask('DELETE', `/admin${pathOf(key)}?${query}`, key, (body) => body.key === key, !!number);
        return nullFor<ForcedRelease>(LeaseLost, asked.then(camel));
    }

    async #acquire(key: LockKeys, options: LockOptions): Promise<Lease> {
        const { ttl = 30, wait = 0, slots, units, shared, signal } = options;
        const unknown = Object.keys(options).find((name) => !OPTIONS.includes(name));
        // A misspelt TTL must never silently mean the default.
        if (unknown) throw new TypeError(`unknown option '${unknown}'; the options are ${OPTIONS.join(', ')}`);
        checkShare(options);
        // Other libraries have milliseconds here: a process that dies would keep its key for hours.
        if (Number(ttl) > 3600) {
            throw new TypeError(`ttl: ${ttl} is a number of seconds, more than an hour: write '${ttl}ms' or '${ttl}s'`);
        }
        const keys = keysOf(key);
        if (keys.claimed && (slots ?? units ?? shared) !== undefined) {
            throw new TypeError("each of several keys has its own share, as in { key: 'gpu', slots: 8 }");
        }
        const { tokenPrefix = process.env['LOCKKEEPER_TOKEN_PREFIX'] ?? '' } = this.#own;
        const owner = options.owner ?? this.#own.owner ?? `${hostname()}:${process.pid}`;
        const token = tokenPrefix + randomBytes(16).toString('hex');
        const [ms, until] = [Math.round(millis('ttl', ttl)), now() + millis('wait', wait)];
        readApiKey(this.#service); // The claim is made in another thread, with a copy.
        const claim = { service: this.#service, keys, token, ttl: ms, until, limits: USUAL, options: { owner, slots, units, shared } };
        const warn = this.#own.warn ?? ((message: string) => process.emitWarning(message, 'LockkeeperWarning'));
        const over = new AbortController();
        if (options.onWait && claim.until > now()) {
            const failed = (error: unknown) => warn(`${keys.name}: the callback for its wait failed: ${error}`);
            report(this.#service, keys.keys, owner, options.onWait, over.signal).catch(failed);
        }
        return new Lease(claim, warn).acquire(signal).finally(() => over.abort());
    }

    async #ask(method: string, path: string, key: string, isGood: (body: any) => boolean, isSafe = true) {
        const until = now() + ANSWER_TIME;
        for (let failures = 0; ; failures++) {
            const request = { method, path, key, within: ANSWER_TIME, isOnce: !isSafe };
            const answer = await send(this.#service, request).answer;
            if (answer.status === 200 && isGood(answer.body)) return answer.body;
            const failure = failureOf(this.#service, request, answer);
            if (!isSafe || failure.kind !== 'ServiceUnavailable' || now() >= until) throw errorOf(failure);
            await sleep(backoff(failures));
        }
    }
}

const nullFor = <T>(kind: Function, promise: Promise<T>): Promise<T | null> =>
    promise.catch((error) => (error instanceof kind ? null : Promise.reject(error)));

/** Runs the work, and releases the lease. */
async function run<T>(lease: Lease, work: Work<T>, signal?: AbortSignal): Promise<T> {
    const cancel = () => lease.cancel(signal!.reason);
    signal?.addEventListener('abort', cancel);
    if (signal?.aborted) cancel();
    const [ended] = await Promise.allSettled([(async () => (lease.begin(), whole(await work(lease))))()]);
    signal?.removeEventListener('abort', cancel);
    const cause = ended.status === 'rejected' ? ended.reason : undefined;
    const released = lease.release().catch((lost: LeaseLost) => {
        // What the work threw is not hidden.
        throw cause && cause !== lost ? new LeaseLost(lost.message, { key: lost.key }, { cause }) : lost;
    });
    // A caller does not wait for what it has given up. A success is one only if the lease lasted.
    const isHurried = ended.status === 'rejected' && signal?.aborted;
    await (isHurried ? Promise.race([released, sleep(MOMENT)]) : released);
    released.catch(() => {});
    if (ended.status === 'rejected') throw cause;
    return ended.value;
}

/** The value of the work, unless that is still to come, and would have no lease. */
function whole<T>(value: T): T {
    if (!types.isGeneratorObject(value)) return value;
    throw new TypeError('withLock(key, options, work): the work is a generator, which goes on after its call: loop in it, as in for await');
}

/** The members of an answer in the spelling of this language: `ttl_ms` is `ttlMs`. */
function camel(value: any): any {
    if (Array.isArray(value)) return value.map(camel);
    if (typeof value !== 'object' || !value) return value;
    const spelled = (name: string) => name.replace(/_(\w)/g, (_, letter: string) => letter.toUpperCase());
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [spelled(name), camel(one)]));
}
