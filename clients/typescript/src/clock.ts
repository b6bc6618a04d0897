// Durations, and the clock of leases.

import { uptime } from 'node:os';

/** A number of seconds, or a text such as '500ms', '30s', '1.5m', '1h30m', '5d'. Never a number of milliseconds. */
export type Duration = number | string;

const UNITS: Record<string, number> = { ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5, '': 1e3 };

/** A duration in milliseconds. */
export function millis(name: string, duration: Duration): number {
    const text = String(duration);
    const parts = /^(\d+\.?\d*|\.\d+)$/.test(text) ? [[text, text, '']] : [...text.matchAll(/(\d+\.?\d*|\.\d+)(ms|s|m|h|d)/g)];
    const isWhole = text !== '' && parts.map(([part]) => part).join('') === text;
    const sum = parts.reduce((ms, [, digits, unit]) => ms + Number(digits) * UNITS[unit!]!, 0);
    const ms = typeof duration === 'number' ? duration * 1e3 : isWhole ? sum : NaN;
    if (ms >= 0 && (ms < Infinity || name === 'wait')) return ms;
    throw new TypeError(`${name}: '${duration}' is no duration: a number is seconds; or write '500ms', '30s', '1h30m'`);
}

const STEP = process.platform === 'linux' ? 50 : 1500; // More than the steps of uptime().
const { bigint: ticks } = process.hrtime; // Also where a test replaces `process.hrtime`, as fake timers do.
const monotonic = () => Number(ticks()) / 1e6;

/** The time that the machine was suspended, plus a constant. A worker takes over that of its parent. */
export const suspended = { ms: uptime() * 1e3 - monotonic() };

/**
 * Milliseconds, the same in every thread, and not those of the wall clock. Node has no fine clock that goes on in
 * suspend: what uptime() gains on the monotonic one, in steps of 10 ms on Linux and 1 s elsewhere, is added to it.
 */
export function now(): number {
    const ms = uptime() * 1e3 - monotonic();
    if (ms > suspended.ms + STEP) suspended.ms = ms; // It never goes back: a lease would seem to last longer.
    return monotonic() + suspended.ms;
}

/** Waits for so long, or until the signal is aborted. */
export const sleep = (ms: number, signal?: AbortSignal) => new Promise<void>((resolve) => {
    const end = () => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', end);
        resolve();
    };
    const timer = setTimeout(end, ms);
    signal?.addEventListener('abort', end);
    if (signal?.aborted) end();
});

/** The pause before the next attempt, with jitter. Not for long: the service keeps the place in line for 5 s. */
export const backoff = (failures: number) => Math.min(1000, 50 * 2 ** failures) * (0.5 + Math.random() / 2);
