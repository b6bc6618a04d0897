// The page of the contract in Chromium: node docs.mjs NODE_MODULES URL SCREENSHOTS
// Prints what is wrong, a line each; nothing else.

import { createRequire } from 'node:module';
import { join } from 'node:path';

const [modules, url, screenshots] = process.argv.slice(2);
const require = createRequire(join(modules, 'index.js'));
const { chromium } = require('playwright-core');
const axe = require.resolve('axe-core/axe.min.js');

const VIEWS = [
    { name: 'light', colorScheme: 'light', viewport: { width: 1280, height: 900 } },
    { name: 'dark', colorScheme: 'dark', viewport: { width: 1280, height: 900 } },
    { name: 'phone', colorScheme: 'light', viewport: { width: 360, height: 780 } },
    { name: 'phone-dark', colorScheme: 'dark', viewport: { width: 360, height: 780 } },
];
const COPIED = { curl: 'curl -sS', php: '<?php', python: 'import json' };

const found = [];
const expect = (holds, what) => { if (!holds) found.push(what); };

const browser = await chromium.launch({
    executablePath: '/usr/bin/chromium',
    args: ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage'],
});
try {
    for (const view of VIEWS) await look(view);
    await use();
} finally {
    await browser.close();
}
console.log(found.join('\n'));

/** Opens the page; whatever it says or asks for elsewhere is a finding. */
async function open(options) {
    const context = await browser.newContext({ ...options, bypassCSP: false });
    const page = await context.newPage();
    page.on('console', (message) => found.push(`console: ${message.text()}`));
    page.on('pageerror', (error) => found.push(`error: ${error.message}`));
    page.on('request', (request) => {
        const own = request.url().startsWith(`${new URL(url).origin}/`);
        expect(own || request.url().startsWith('data:'), `request: ${request.url()}`);
    });
    const answer = await page.goto(url);
    expect(answer.status() === 200, `status: ${answer.status()}`);
    return { context, page };
}

async function look({ name, ...options }) {
    const { context, page } = await open(options);
    await page.screenshot({ path: join(screenshots, `docs-${name}.png`) });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    expect(wide <= 0, `${name}: ${wide} pixels too wide`);
    await page.locator('#acquireLock').scrollIntoViewIfNeeded();
    await page.evaluate(() => document.querySelector('#acquireLock').scrollIntoView());
    await page.screenshot({ path: join(screenshots, `docs-${name}-verb.png`) });
    await page.evaluate(() => document.querySelectorAll('details').forEach((one) => { one.open = true; }));
    // Its own script runs beside the page, so that the page's policy stays in force.
    const session = await context.newCDPSession(page);
    const { readFile } = await import('node:fs/promises');
    await session.send('Runtime.evaluate', { expression: await readFile(axe, 'utf8') });
    for (const language of Object.keys(COPIED)) {
        await page.locator(`#in-${language}`).check();
        const { result } = await session.send('Runtime.evaluate', {
            expression: 'axe.run().then(({ violations }) => JSON.stringify(violations.map((one) => '
                + 'one.id + " " + one.nodes.map((node) => node.html.slice(0, 150)).join(" | "))))',
            awaitPromise: true,
        });
        for (const violation of JSON.parse(result.value)) found.push(`${name} ${language}: ${violation}`);
    }
    await context.close();
}

async function use() {
    const { context, page } = await open({ permissions: ['clipboard-read', 'clipboard-write'] });
    const copied = () => page.evaluate(() => navigator.clipboard.readText());
    const verb = page.locator('section', { has: page.locator('#acquireLock') });
    for (const [language, begin] of Object.entries(COPIED)) {
        // By keyboard, as far as that goes.
        await page.locator(`#in-${language}`).focus();
        await page.keyboard.press('Space');
        for (const keyed of [true, false]) {
            await page.locator('#keyed').setChecked(keyed);
            expect(await verb.locator('.example:visible').count() === 1, `${language}: not one example`);
            await page.evaluate(() => navigator.clipboard.writeText(''));
            await verb.locator('.copy:visible').focus();
            await page.keyboard.press('Enter');
            await page.locator('.said', { hasText: 'Copied' }).waitFor();
            let text = '';
            while (text === '') text = await copied();
            expect(text.includes(begin), `${language}: copied ${text}`);
            expect(text.includes(`${new URL(url).origin}/locks/report`), `${language}: not this service: ${text}`);
            expect(text.includes('API_KEY') === keyed, `${language}: API key ${keyed}: ${text}`);
        }
    }
    await page.reload();
    expect(await page.locator('#in-python').isChecked(), 'the choice is forgotten');
    // Without the clipboard, as on http from another machine.
    await page.evaluate(() => { delete Navigator.prototype.clipboard; });
    await verb.locator('.copy:visible').click();
    await page.locator('.said', { hasText: /Copied/ }).waitFor();
    await page.keyboard.press('Home');
    for (const link of await page.locator('nav a').all()) {
        const target = await link.getAttribute('href');
        await link.click();
        const shown = await page.locator(target).evaluate((one) => {
            const { top } = one.getBoundingClientRect();
            return top >= 0 && top < innerHeight;
        });
        expect(shown, `${target} is not shown`);
    }
    await page.keyboard.press('Control+Home');
    await context.close();
    const plain = await browser.newContext({ javaScriptEnabled: false });
    const still = await plain.newPage();
    await still.goto(url);
    expect(await still.locator('.copy:visible').count() === 0, 'buttons that do nothing');
    await still.locator('#in-php').check();
    expect(await still.locator('#acquireLock ~ .php:visible').count() === 1, 'no choice without scripts');
    await plain.close();
}
