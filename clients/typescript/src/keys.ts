// The keys of a claim, one or several, and what is asked about them.

import { inspect } from 'node:util';
import { RequestRefused } from './errors.js';

/** One of several keys, with its share, such as { key: 'gpu', slots: 8, units: 3 }. */
export type ClaimedKey = { key: string; slots?: number; units?: number; shared?: boolean };

/** The keys, and their name for people. With `claimed` they are several at once: a lease of each, or none. */
export type Keys = { keys: string[]; name: string; claimed?: ClaimedKey[] };

/** A lease in a grant. */
export type KeyGrant = { key: string; fencing_token: number; slot?: number; capped?: boolean };

/** Fencing tokens by key. */
export type Numbers = Record<string, number>;

const MOST_BYTES = 32768; // Of a body that the service reads.

/** The path of a key. Its slashes stay, because some proxies refuse `%2F`. */
export const keyPath = (key: string) => `/locks/${encodeURIComponent(key).replaceAll('%2F', '/')}`;

/** The path of a key, which nothing on the way resolves to another one. */
export function pathOf(key: unknown): string {
    if (typeof key !== 'string') {
        throw new RequestRefused(`${inspect(key)} is no key: a key is a text, and several are a list`, { code: 'invalid_key' });
    }
    const isWhole = !/\p{Surrogate}/u.test(key);
    if (isWhole && !/(^|\/)\.{0,2}(\/|$)/.test(key)) return keyPath(key);
    const message = `${JSON.stringify(key)} is no key: it is a text, without segments that are empty, . or ..`;
    throw new RequestRefused(message, { key, code: 'invalid_key' });
}

/** Throws a TypeError for a number that JSON does not have: it would be an exclusive lease, or another number of units. */
export function checkShare({ slots, units }: { slots?: number; units?: number }): void {
    if (!Number.isSafeInteger(slots ?? 1)) throw new TypeError(`slots: '${slots}' is no number of leases`);
    if (!Number.isSafeInteger(units ?? 1)) throw new TypeError(`units: '${units}' is no number of units`);
}

export function keysOf(key: string | readonly (string | ClaimedKey)[]): Keys {
    if (!Array.isArray(key)) {
        pathOf(key);
        return { keys: [key as string], name: `'${key}'` };
    }
    const isNamed = (one: unknown): one is ClaimedKey => typeof one === 'object' && one !== null && !Array.isArray(one);
    const claimed = key.map((one: string | ClaimedKey): ClaimedKey => (isNamed(one) ? { ...one } : { key: one }));
    for (const one of claimed) {
        pathOf(one.key);
        checkShare(one);
        const unknown = Object.keys(one).find((name) => !['key', 'slots', 'units', 'shared'].includes(name));
        if (unknown) throw new TypeError(`unknown option '${unknown}' of '${one.key}'; the options are slots, units, shared`);
    }
    const keys = claimed.map((one) => one.key);
    const several = { keys, name: keys.map((one) => `'${one}'`).join(', '), claimed };
    // Else they could be acquired, and neither renewed nor released.
    const longest = refreshOf(several, Object.fromEntries(keys.map((one) => [one, Number.MAX_SAFE_INTEGER])), 1e15).body;
    if (Buffer.byteLength(JSON.stringify(longest)) > MOST_BYTES) {
        const message = `the ${keys.length} keys are too long together: a request has at most ${MOST_BYTES} bytes`;
        throw new RequestRefused(message, { key: keys[0], code: 'body_too_large' });
    }
    return several;
}

export const acquireOf = ({ keys, claimed }: Keys, options: object) =>
    claimed ? { path: '/locks', body: { ...options, keys: claimed } } : { path: keyPath(keys[0]!), body: options };

export function refreshOf({ keys, claimed }: Keys, numbers: Numbers, ttl: number) {
    if (claimed) return { path: '/locks/refresh', body: { ttl_ms: ttl, leases: named(keys, numbers) } };
    return { path: `${keyPath(keys[0]!)}/refresh`, body: { ttl_ms: ttl, fencing_token: numbers[keys[0]!] } };
}

/** Releases the leases with these numbers, or without them whatever the token has. */
export function releaseOf({ keys, claimed }: Keys, numbers?: Numbers) {
    if (claimed) return { path: '/locks', body: { leases: named(keys, numbers) } };
    return { path: keyPath(keys[0]!) + (numbers ? `?fencing_token=${numbers[keys[0]!]}` : '') };
}

const named = (keys: string[], numbers?: Numbers) => keys.map((key) => ({ key, fencing_token: numbers?.[key] }));

/** The leases in an answer; undefined if they are not those of these keys. */
export function leasesIn({ keys, claimed }: Keys, body: any): KeyGrant[] | undefined {
    const leases: KeyGrant[] = claimed ? body.leases : [body];
    if (!Array.isArray(leases) || leases.length !== keys.length) return undefined;
    const isOurs = ({ key, fencing_token }: KeyGrant) => keys.includes(key) && Number.isSafeInteger(fencing_token);
    return leases.every(isOurs) ? leases : undefined;
}
