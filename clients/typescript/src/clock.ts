// Durations, and the clock of leases.

import { uptime } from 'node:os';

/** A number of seconds, or a text such as '500ms', '30s', '1.5m', '2h', '5d'. Never milliseconds. */
export type Duration = number | string;

const UNITS: Record<string, number> = { ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5, '': 1e3 };

/** A duration in milliseconds. */
export function millis(name: string, duration: Duration): number {
    const text = typeof duration === 'string' ? /^(\d+(?:\.\d+)?|\.\d+)(ms|s|m|h|d|)$/.exec(duration.trim()) : null;
    const ms = text ? Number(text[1]) * UNITS[text[2]!]! : typeof duration === 'number' ? duration * 1e3 : NaN;
    if (ms >= 0) return ms;
    throw new TypeError(`${name}: ${String(duration)} is no duration: a number is seconds; or write '500ms', '30s', '1.5m'`);
}

// The difference of the two clocks has to grow by this to be a suspension: more than the steps of uptime().
const STEP = process.platform === 'linux' ? 50 : 1500;

const monotonic = () => Number(process.hrtime.bigint()) / 1e6;

function gap(): number {
    try {
        return uptime() * 1e3 - monotonic();
    } catch {
        return -Infinity; // A sandbox without /proc; suspensions are not seen there.
    }
}

/** The time that the machine was suspended, plus a constant. The worker takes over that of its parent. */
export const suspended = { ms: gap() };

/**
 * Milliseconds, the same in every thread. Node has no clock that is fine and goes on while the machine is suspended:
 * the monotonic one stops then, and uptime() has steps of 10 ms on Linux and 1 s elsewhere. So what uptime() has
 * gained on the monotonic clock is added to it. Steps of the wall clock do not matter.
 */
export function now(): number {
    const ms = gap();
    if (ms > suspended.ms + STEP) suspended.ms = ms; // It never goes back: a lease would seem to last longer.
    return monotonic() + (suspended.ms > -Infinity ? suspended.ms : 0);
}

export const sleep = (ms: number) => new Promise<void>((resolve) => setTimeout(resolve, Math.max(0, ms)));

/** The pause before the next attempt, with jitter; the place in line is kept for 5 s. */
export const backoff = (failures: number) => Math.min(1000, 50 * 2 ** failures) * (0.5 + Math.random() / 2);
