// Works under a lease until its input ends or the lease is lost.
// Usage: node main.js URL KEY TTL [WAIT [blind]]

import { LeaseLost, keepAlive } from './keep-alive';
import { Configuration, LocksApi, ResponseError } from './sdk/typescript';

declare const process: { argv: string[]; stdin: any };
declare const require: (name: string) => any;

function work(signal: AbortSignal): Promise<void> {
    console.log('at work');
    return new Promise((resolve, reject) => {
        process.stdin.on('end', resolve).resume();
        signal.addEventListener('abort', () => {
            console.log('told to stop');
            reject(signal.reason);
        });
    });
}

/** Work that lets nobody else of the event loop run. */
async function blindWork(): Promise<void> {
    console.log('at work');
    require('fs').readFileSync(0);
}

async function main(basePath: string, key: string, ttl: number, wait = 0, how = ''): Promise<void> {
    try {
        await keepAlive(new LocksApi(new Configuration({ basePath })), key, ttl * 1000, how === 'blind' ? blindWork : work, wait * 1000);
        console.log('done');
    } catch (error) {
        if (error instanceof LeaseLost) console.log('lost');
        else if (error instanceof ResponseError && error.response.status === 409) console.log('not now');
        else throw error;
    }
    process.stdin.destroy();
}

const [, , url, key, ttl, wait, how] = process.argv;
main(url, key, Number(ttl), Number(wait ?? 0), how);
