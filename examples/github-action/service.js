// Calls of the service; the inputs and the state of the action are in the environment.

'use strict';

const fs = require('node:fs');

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? '').trim();

// An input such as 90s, 10m or 1.5h, or a number of seconds, in milliseconds.
function duration(name) {
    const [, number, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h|d)?$/.exec(input(name)) ?? [];
    if (!number) throw new Error(`${name} is a time such as 90s, 10m or 2h, and not '${input(name)}'`);
    return Math.round(number * { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }[unit ?? 's']);
}

// The status is 0 if there was no answer.
async function call(method, path, token, options, seconds = 10) {
    const key = input('key').split('/').map(encodeURIComponent).join('/');
    const headers = { 'Content-Type': 'application/json', 'Lock-Token': token };
    if (input('api-key')) headers.Authorization = `Bearer ${input('api-key')}`;
    const request = { method, headers, signal: AbortSignal.timeout(seconds * 1000) };
    if (options) request.body = JSON.stringify(options);
    try {
        const answer = await fetch(`${input('url').replace(/\/+$/, '')}/locks/${key}${path}`, request);
        const body = await answer.json().catch(() => ({}));
        return { status: answer.status, body };
    } catch (error) {
        return { status: 0, body: { detail: `no answer: ${error.cause?.message ?? error.message}` } };
    }
}

// A line for the runner in one of its files.
const tell = (file, name, value) => fs.appendFileSync(process.env[file], `${name}=${value}\n`);

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

function fail(detail) {
    console.log(`::error::${detail.replace(/[\r\n]+/g, ' ')}`);
    process.exitCode = 1;
}

module.exports = { call, duration, fail, input, pause, tell };
