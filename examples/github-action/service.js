// Calls of the service; the inputs and the state of the action are in the environment.

'use strict';

const fs = require('node:fs');

const input = (name) => (process.env[`INPUT_${name.toUpperCase()}`] ?? '').trim();

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

module.exports = { call, fail, input, pause, tell };
