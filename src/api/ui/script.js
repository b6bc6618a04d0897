'use strict';
(() => {
// Helpers. Texts of clients only ever become text nodes.
const $ = id => document.getElementById(id);
const now = () => performance.now();
const make = (tag, props = {}, ...inside) => {
  const node = document.createElement(tag);
  Object.assign(node, typeof props === 'string' ? { className: props } : props);
  node.append(...inside);
  return node;
};
const button = (text, onclick) => make('button', { type: 'button', textContent: text, onclick });
const set = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const plural = (n, one, many = one + 's') => `${n.toLocaleString('en')} ${n === 1 ? one : many}`;

// Characters that are invisible or turn the text around are shown as their code.
const ODD = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\u{e0000}-\u{e01ef}]/u;
const code = odd => 'U+' + odd.codePointAt(0).toString(16).toUpperCase().padStart(4, '0');
const plain = text => text.replace(new RegExp(ODD.source, 'gu'), code);
const inert = text => {
  const node = make('bdi', { dir: 'auto' });
  for (const part of text.split(new RegExp(`(${ODD.source})`, 'u'))) {
    if (ODD.test(part)) {
      node.append(make('span', 'odd', code(part)));
    } else if (part) node.append(part);
  }
  return node;
};
const inertKey = (key, from = 0, to = key.length) => {
  const cut = key.lastIndexOf('/') + 1, node = make('bdi', { dir: 'ltr' });
  if (cut > from) node.append(make('span', 'dim', inert(key.slice(from, Math.min(cut, to)))));
  node.append(inert(key.slice(Math.max(cut, from), to)));
  return node;
};
// In two parts, the second of so many letters: where there is no room, the first loses its end. Keys
// differ at theirs, and owners say there what for. Both are inline, so that a text is copied as one line.
const inTwo = (text, letters, part) => {
  if (text.length < 2 * letters) return make('div', 'both', part(text));
  const end = [...text].slice(-letters), cut = text.length - end.join('').length, first = make('span', 'cut', part(text, 0, cut));
  first.style.maxWidth = `calc(100% - ${end.reduce((sum, one) => sum + (ODD.test(one) ? 8 : one < '\u1100' ? 1 : 2), 0)}ch)`;
  return make('div', 'both', first, make('span', 'rest', part(text, cut)));
};
const keyEnds = key => inTwo(key, 12, inertKey), ownerEnds = owner => inTwo(owner, 16, (owner, ...part) => inert(owner.slice(...part)));
const span = ms => {
  const s = Math.max(0, Math.floor(ms / 1000)), two = n => String(n).padStart(2, '0');
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor(s / 60) % 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
};
const short = ms => ms === undefined ? '' : ms < 1000 ? `${Math.round(ms)} ms` : ms < 10000 ? `${(ms / 1000).toFixed(1)} s` : span(ms);
const coarse = ms => span(ms).split(' ').slice(0, 2).join(' ');
const fine = ms => !ms ? '0 ms' : ms < 10 ? `${ms.toFixed(ms < 1 ? 2 : 1)} ms` : short(ms);
// The moment so long ago, by the reader's clock and zone; with the date unless it is today.
const clock = exact => [{}, { day: 'numeric', month: 'short' }].map(date => new Intl.DateTimeFormat('en-GB', { ...date, hour: '2-digit', minute: '2-digit', ...exact }));
const told = forms => ms => {
  const at = new Date(Date.now() - ms);
  return forms[at.toDateString() === new Date().toDateString() ? 0 : 1].format(at);
};
const since = told(clock()), exactly = told(clock({ second: '2-digit', timeZoneName: 'short' }));
const path = key => key.split('/').map(encodeURIComponent).join('/');
const shell = text => /^[\w./:@=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
const base = location.href.split('#')[0].replace(/\/ui\/?(\?.*)?$/, '');

// Requests.
let apiKey = sessionStorage.getItem('lockkeeper-api-key') || '', needsKey = false;
const locked = () => needsKey && !apiKey, curlKey = () => apiKey ? ' -H "Authorization: Bearer $API_KEY"' : '';
const headers = more => apiKey ? { ...more, Authorization: 'Bearer ' + apiKey } : more;
class Refused extends Error {
  constructor(status, { detail, code }) {
    super(detail || `answered ${status}`);
    Object.assign(this, { status, code });
  }
}
const refusal = async answer => new Refused(answer.status, await answer.json().catch(() => ({})));
const call = async (method, url, body) => {
  const options = { method, cache: 'no-store', signal: AbortSignal.timeout(15000), headers: headers(body ? { 'Content-Type': 'application/json' } : {}) };
  if (body) options.body = JSON.stringify(body);
  const answer = await fetch(url, options);
  if (!answer.ok) throw await refusal(answer);
  return answer.status === 204 ? {} : answer.json();
};
const read = async (answer, end, each) => {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (text + value).split(end);
    text = parts.pop();
    parts.forEach(each);
  }
};
const why = error => error instanceof Refused ? error.message : 'no answer from lockkeeper';
// At the beginning of a line; the page retries by itself.
const sentence = error => why(error).replace(/; retry$/, '').replace(/^./, first => first.toUpperCase());

// Speech: what changes by itself is said at most every 10 s, what a person did at once.
let saidAt = -1e9, toastTimer;
const say = (text, at_once) => {
  if (!at_once && now() - saidAt < 10000) return;
  saidAt = now();
  set($('say'), text);
};
const toast = text => {
  set($('toast'), text);
  $('toast').hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { $('toast').hidden = true; }, 4000);
};
const copy = async text => {
  try { await navigator.clipboard.writeText(text); } catch {
    // Without HTTPS there is only the old way.
    const area = make('textarea', { value: text });
    ($('token').open ? $('token') : document.body).append(area);
    area.select();
    document.execCommand('copy');
    area.remove();
  }
  toast('Copied');
};

// State.
let status, statusAt = 0, run = '', ends = [], live = 'connecting', offlineSince = 0;
let rows = new Map(), listedAt = 0, listTook = 0, moreToList = false, searched = 0, listError, wanted = 100;
let sort = { by: 'held', up: false }, open, current, firstList = true;
const may = what => !status || status.caller.may.includes(what);

// The filter, in the URL behind `#`, so that no log has it.
let filter = {};
const spanOf = text => {
  if (!/^\d+(\.\d+)?$|^(\d+(\.\d+)?(ms|s|m|h|d))+$/.test(text)) return NaN;
  const parts = [...text.matchAll(/([\d.]+)([a-z]*)/g)];
  return parts.reduce((ms, [, digits, unit]) => ms + digits * { ms: 1, s: 1e3, m: 6e4, h: 36e5, d: 864e5 }[unit || 's'], 0);
};
const compare = (text, parse) => {
  const [, sign, rest] = /^(>=|<=|>|<|=)?(.*)$/.exec(text), limit = parse(rest);
  if (Number.isNaN(limit)) return undefined;
  return value => value !== undefined && { '>': value > limit, '<': value < limit, '>=': value >= limit, '<=': value <= limit, '=': value === limit }[sign || '>='];
};
const parse = text => {
  const parsed = { text, prefix: '', owner: [], words: [] };
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [, name, rest] = /^(?:(prefix|owner|waiting|held):)?(.*)$/.exec(word), [unknown] = /^[a-z]+:/i.exec(word) || [];
    if (name === 'prefix') parsed.prefix = rest;
    else if (name === 'owner') parsed.owner.push(rest.toLowerCase());
    else if (name === 'waiting') parsed.waiting = compare(rest, text => text === '' ? NaN : Number(text)) || (parsed.wrong = `${word} is no number: write waiting:>0`, undefined);
    else if (name === 'held') parsed.held = compare(rest, spanOf) || (parsed.wrong = `${word} is no time: write held:>10m`, undefined);
    else {
      parsed.words.push(word.toLowerCase());
      if (unknown) parsed.wrong = `${unknown} is no filter (those are prefix:, owner:, waiting: and held:), so ${word} is searched as text`;
    }
  }
  parsed.inPage = Boolean(parsed.owner.length || parsed.words.length || parsed.waiting || parsed.held);
  return parsed;
};
const matches = (key, owner, held, waiting) => {
  const name = (owner || '').toLowerCase(), lower = key.toLowerCase();
  return key.startsWith(filter.prefix) && filter.owner.every(part => name.includes(part)) &&
    filter.words.every(word => lower.includes(word) || name.includes(word)) &&
    (!filter.held || filter.held(held)) && (!filter.waiting || waiting === undefined || filter.waiting(waiting));
};
const useFilter = text => {
  filter = parse(text);
  if ($('filter').value !== text) $('filter').value = text;
  const hash = text ? '#filter=' + encodeURIComponent(text) : '';
  if (location.hash !== hash && !(hash === '' && location.hash === '#locks')) history.replaceState(null, '', location.pathname + location.search + hash);
  wanted = 100;
  if (filter.wrong) say(filter.wrong, true);
  render();
  renderEnds();
  listSoon(0);
};
const fromUrl = () => {
  let text = '';
  try { text = decodeURIComponent((/^#filter=(.*)$/.exec(location.hash) || [, ''])[1]); } catch { /* not ours */ }
  if (!filter.text || filter.text !== text) useFilter(text);
};

// The list. Its pace follows the time that a list takes: on Redis a page is a walk over all keys.
let begun = false, listing = false, listTimer, dirty = true;
const listSoon = ms => {
  clearTimeout(listTimer);
  listTimer = setTimeout(list, ms);
};
const list = async () => {
  if (listing) { dirty = true; return; }
  if (!begun || document.hidden || locked()) return;
  listing = true; dirty = false;
  const began = now(), got = [], asked = filter, deep = filter.inPage, askedAs = apiKey;
  let cursor, found = 0, failed;
  try {
    do {
      // As many as a page may have, because they come by name and are sorted here.
      const query = new URLSearchParams({ limit: 1000 });
      if (asked.prefix) query.set('prefix', asked.prefix);
      if (cursor) query.set('cursor', cursor);
      const page = await call('GET', 'locks?' + query);
      got.push(...page.locks);
      cursor = page.cursor;
      found += deep ? page.locks.filter(lock => matches(lock.key, ownerOf(lock), lock.held_ms, lock.waiters)).length : page.locks.length;
    } while (cursor && found < wanted && got.length < 10000 && now() - began < 2000);
    take(got);
    moreToList = Boolean(cursor); searched = got.length;
    listedAt = now(); listError = undefined; offlineSince = 0;
  } catch (error) {
    // A late answer to an API key says nothing of the one that was entered after it.
    if (askedAs !== apiKey) { listing = false; return listSoon(0); }
    failed = error;
    listError = error;
    if (!(error instanceof Refused)) offlineSince ||= now();
    if (error.status === 401) askForKey();
  }
  listing = false; firstList = false;
  listTook = now() - began;
  if (asked !== filter) return listSoon(0);
  render();
  renderHealth();
  if (failed?.status === 403) return;
  listSoon(failed ? 2000 : dirty ? Math.max(500, 10 * listTook) : Math.max(5000, 10 * listTook));
};
const changed = () => {
  if (listError?.status === 403) return;
  if (listing) { dirty = true; return; }
  listSoon(Math.max(0, Math.max(500, 10 * listTook) - (now() - listedAt)));
};
// A shared key has several owners: how many they are stands for them.
const ownerOf = ({ owner, holders, slots, units }) => !holders ? owner : units ? `${holders} with ${units} of ${slots}` : slots < 1000 ? `${holders} of ${slots}` : plural(holders, 'reader');
const partOf = ({ slot, units }) => units ? `${units} units` : slot && `slot ${slot}`;
const take = locks => {
  const at = now(), next = new Map();
  for (const lock of locks) {
    const old = rows.get(lock.key), owner = ownerOf(lock);
    const same = old && (lock.holders ? old.lock.holders : old.number === lock.fencing_token && (lock.fencing_token !== undefined || old.owner === owner));
    next.set(lock.key, {
      key: lock.key, owner, number: lock.fencing_token, waiting: lock.waiters, at, lock,
      left: lock.ttl_ms, total: Math.max(lock.ttl_ms || 0, same ? old.total : 0),
      // The service does not know since when a direct client holds a key: it is at least as long as seen here.
      // A shared key has no one time: its leases have theirs.
      since: lock.holders ? undefined : lock.held_ms !== undefined ? at - lock.held_ms : same ? old.since : at,
      least: lock.held_ms === undefined, fresh: !same && !firstList && rows.size > 0,
    });
  }
  rows = next;
};
const kind = lock => lock.holders ? 'shared' : lock.fencing_token === undefined ? 'direct client' : 'exclusive';
const heldFor = row => row.since === undefined ? undefined : now() - row.since;
const leftOf = row => row.left === undefined ? undefined : Math.max(0, row.left - (now() - row.at));
const timeLeft = ms => ms === undefined ? 'no end' : ms <= 0 && !listError ? 'ending' : span(ms);
const isLate = row => row.left !== undefined && row.total > 0 && leftOf(row) < row.total / 5;
const isStuck = row => !row.lock.holders && row.waiting > 0 && heldFor(row) >= 300000;

// The table.
const ORDER = {
  key: row => row.key, owner: row => row.owner || '', held: row => heldFor(row) ?? -1, left: row => leftOf(row) ?? Infinity,
  waiting: row => row.waiting, number: row => row.number || 0, kind: row => kind(row.lock),
};
const shown = () => {
  const all = [...rows.values()].filter(row => matches(row.key, row.owner, heldFor(row), row.waiting));
  const of = ORDER[sort.by], order = (a, b) => {
    const [one, two] = [of(a), of(b)];
    return typeof one === 'string' ? (one < two ? -1 : one > two ? 1 : 0) : one - two;
  };
  all.sort((a, b) => (sort.up ? 1 : -1) * order(a, b) || (a.key < b.key ? -1 : 1));
  return all;
};
const cells = new Map(), inRow = () => document.activeElement?.closest('#rows tr')?.dataset.key;
const tableRow = row => {
  const name = make('button', { type: 'button', className: 'bare name', tabIndex: -1, title: plain(row.key) }, keyEnds(row.key));
  const copies = make('button', { type: 'button', className: 'bare copy', tabIndex: -1, textContent: 'copy' });
  copies.setAttribute('aria-label', 'Copy the key');
  const sub = make('div', 'sub'), fill = make('i'), time = make('span', 'time');
  const cell = {
    name, sub, fill, time, owner: make('td', 'owner wide'), held: make('span'), since: make('span', 'since dim'),
    left: make('td', 'num left', make('div', {}, make('span', 'meter', fill), time)),
    wait: make('td', 'num'), number: make('td', 'num wide mono'), kind: make('td', 'wide dim'),
  };
  cell.tr = make('tr', {}, make('td', 'key', make('div', {}, name, copies), sub), cell.owner, make('td', 'num', cell.held, cell.since), cell.left, cell.wait, cell.number, cell.kind);
  cell.tr.dataset.key = row.key;
  copies.onclick = event => { event.stopPropagation(); copy(row.key); };
  cell.tr.onclick = () => { if (String(getSelection()) === '') show(row.key); };
  name.onfocus = () => { choose(row.key); };
  return cell;
};
const tick = (cell, row) => {
  const ms = heldFor(row);
  set(cell.held, ms === undefined ? '' : (row.least ? '≥ ' : '') + span(ms));
  const left = leftOf(row);
  set(cell.time, timeLeft(left));
  cell.fill.style.transform = `scaleX(${left === undefined ? 1 : row.total ? left / row.total : 0})`;
  cell.left.classList.toggle('late', isLate(row));
  cell.left.title = left === 0 ? 'Its time is over: the store is ending it' : isLate(row) ? 'A refresh is overdue' : '';
  cell.tr.classList.toggle('stuck', isStuck(row));
};
const fill = (cell, row) => {
  if (cell.row !== row) {
    for (const place of [cell.owner, cell.sub]) {
      if (place.dataset.text !== (row.owner || '')) {
        place.dataset.text = row.owner || '';
        place.replaceChildren(row.owner ? ownerEnds(row.owner) : '');
        place.title = plain(row.owner || '');
      }
    }
    cell.tr.classList.toggle('shared', Boolean(row.lock.holders));
    set(cell.since, row.least ? '' : since(heldFor(row)));
    cell.since.title = row.least ? '' : `Since ${exactly(heldFor(row))}`;
    cell.held.title = row.least && row.since !== undefined ? 'The service does not know since when: at least as long as this page has seen it' : '';
    set(cell.wait, String(row.waiting));
    cell.wait.className = row.waiting ? 'num wait' : 'num wait zero';
    set(cell.number, row.number === undefined ? '' : String(row.number));
    set(cell.kind, kind(row.lock));
    if (row.fresh) { cell.tr.classList.remove('fresh'); void cell.tr.offsetWidth; cell.tr.classList.add('fresh'); }
    cell.row = row;
  }
  tick(cell, row);
};
const choose = key => {
  const old = cells.get(current);
  if (old) old.name.tabIndex = -1;
  current = key;
  if (cells.has(key)) cells.get(key).name.tabIndex = 0;
};
const render = () => {
  const body = $('rows'), all = shown(), some = all.slice(0, Math.max(wanted, 100)), held = $('held'), asking = locked();
  $('key-form').hidden = !asking;
  held.hidden = asking;
  $('ends').hidden = $('load').hidden = asking;
  if (asking) { $('foot').textContent = ''; $('more').hidden = true; $('count').textContent = ''; return; }
  $('held').classList.toggle('all-alike', all.every(row => kind(row.lock) === 'exclusive'));
  if (firstList && !listError) {
    if (!body.children.length) {
      for (let n = 0; n < 8; n++) body.append(make('tr', 'bone', ...['key', 'owner wide', 'num', 'num left', 'num', 'num wide', 'wide'].map(name => make('td', { className: name }, make('i')))));
    }
    return;
  }
  const keep = new Set(some.map(row => row.key)), focused = inRow();
  const before = [...body.children].findIndex(tr => tr.dataset.key === focused);
  for (const tr of [...body.children]) {
    if (!keep.has(tr.dataset.key)) { cells.delete(tr.dataset.key); tr.remove(); }
  }
  let place = body.firstChild;
  for (const row of some) {
    let cell = cells.get(row.key);
    if (!cell) { cell = tableRow(row); cells.set(row.key, cell); }
    fill(cell, row);
    if (cell.tr === place) place = place.nextSibling;
    else body.insertBefore(cell.tr, place);
  }
  if (focused && !keep.has(focused)) (body.children[Math.min(before, body.children.length - 1)]?.querySelector('.name') || held).focus();
  else if (focused && inRow() !== focused) cells.get(focused)?.name.focus();
  if (!cells.has(current)) choose(some[0]?.key);
  held.classList.toggle('stale', Boolean(listError));
  for (const tr of body.children) tr.classList.toggle('open', tr.dataset.key === open);
  renderBlank(some.length);
  renderFoot(all.length, some.length);
  renderStuck();
};
const renderBlank = count => {
  const blank = $('blank'), line = text => make('b', '', text);
  blank.hidden = count > 0;
  if (count) return;
  if (listError?.status === 403) {
    blank.replaceChildren(line('This API key may not list these locks'), make('span', {}, `${sentence(listError)}. Use another API key${filter.text ? ', or a prefix that it may read' : ''}.`));
  } else if (listError) {
    blank.replaceChildren(line('The locks cannot be shown'), make('span', {}, `${sentence(listError)}. This page keeps trying.`));
  } else if (filter.text) {
    const clear = button('Clear the filter', () => useFilter(''));
    blank.replaceChildren(line('No held key matches the filter'), make('span', {}, moreToList ? `Searched the first ${plural(searched, 'key')}. ` : ''), clear);
  } else {
    blank.replaceChildren(line('Nothing is locked'), make('span', {}, 'Try:'), document.createElement('br'), make('code', {}, `curl -X POST ${shell(`${base}/locks/hello?ttl=30s`)}${curlKey()}`));
  }
};
const renderFoot = (matching, count) => {
  // The service counts leases, the list keys: a shared key has several.
  const all = moreToList ? status?.held : searched;
  const old = Boolean(listError && count), unknown = listError && !count;
  $('count').className = old ? 'old' : 'dim';
  if (old) set($('count'), `${plural(count, 'key')}, as of ${span(now() - listedAt)} ago`);
  else set($('count'), unknown ? '' : filter.text ? `${plural(matching, 'match', 'matches')}` : all === undefined ? `${searched.toLocaleString('en')}+ held` : `${all.toLocaleString('en')} held`);
  let text = '';
  if (!old && (count < matching || moreToList)) {
    text = filter.inPage ? `Showing ${count} of ${matching} matches among the first ${plural(searched, 'key')}.` : moreToList ? `Showing ${plural(count, 'key')}, sorted among the first ${searched.toLocaleString('en')} by name. A filter searches further.` : `Showing ${plural(count, 'key')} of ${matching.toLocaleString('en')}.`;
  }
  set($('foot'), filter.wrong ? `${filter.wrong}. ${text}` : text);
  $('more').hidden = !(count < matching || (moreToList && !filter.inPage)) || wanted >= 2000 || Boolean(listError);
};
const renderStuck = () => {
  const stuck = [...rows.values()].filter(isStuck), note = $('stuck');
  note.hidden = !stuck.length || filter.text === 'waiting:>0 held:>5m';
  if (note.hidden) return;
  const worst = stuck.reduce((a, b) => a.since < b.since ? a : b), key = worst.key.length > 60 ? worst.key.slice(0, 60) + '…' : worst.key;
  const look = button('Show', () => useFilter('waiting:>0 held:>5m'));
  const text = stuck.length > 1 ? `${stuck.length} keys are held for more than 5 minutes while others wait.` : `is held for ${span(heldFor(worst))} while ${worst.waiting === 1 ? '1 waits' : worst.waiting + ' wait'}.`;
  const state = stuck.length > 1 ? text : key + text;
  if (note.dataset.state === state) return;
  note.dataset.state = state;
  const focused = note.contains(document.activeElement);
  note.replaceChildren(...(stuck.length > 1 ? [] : [make('b', {}, inert(key)), ' ']), text, look);
  if (focused) look.focus();
};

// The ends.
const renderEnds = () => {
  const some = ends.filter(end => matches(end.key, end.owner, end.held_ms)).sort((a, b) => b.at - a.at);
  const body = $('end-rows'), old = new Map([...body.children].map(tr => [Number(tr.dataset.number), tr]));
  let place = body.firstChild;
  for (const end of some) {
    let tr = old.get(end.number);
    if (!tr) {
      tr = make('tr', {}, make('td', { className: 'num dim', title: exactly(now() - end.at) }), make('td', { className: 'key', title: plain(end.key) }, keyEnds(end.key)), make('td', { className: 'owner wide', title: plain(end.owner || '') }, end.owner ? ownerEnds(end.owner) : ''),
        make('td', 'num', short(end.held_ms)), make('td', {}, make('span', { className: 'why ' + end.why, textContent: end.why.replace('_', ' '), title: WHY[end.why] || '' })), make('td', 'num wide dim last', end.waited_ms ? short(end.waited_ms) : ''));
      tr.dataset.number = end.number;
    }
    old.delete(end.number);
    set(tr.firstChild, coarse(now() - end.at));
    if (tr === place) place = place.nextSibling; else body.insertBefore(tr, place);
  }
  old.forEach(tr => tr.remove());
  $('end-blank').hidden = some.length > 0;
  set($('end-blank'), ends.length ? 'No end matches the filter.' : status ? 'No lease has ended on this instance yet.' : '');
  set($('ends-count'), some.length ? `${some.length} on this instance` : '');
};
const WHY = {
  released: 'The holder released it', disconnected: 'The client of its stream closed the connection', expired: 'Its TTL passed without a refresh',
  forced: 'An administrator ended it', max_hold: 'It was held for longer than is allowed',
  elsewhere: 'This instance did not see it: it expired, or was ended through another instance or in the store',
};

// The health of the store in one sentence.
const STORES = { embedded: 'Embedded store', redis: 'Redis', 'redis-sentinel': 'Redis (Sentinel)', 'redis-cluster': 'Redis Cluster', redlock: 'Redlock' };
const health = () => {
  if (locked()) return ['', 'Waiting for an API key'];
  if (offlineSince) return ['bad', `This page cannot reach lockkeeper. Shown is what was known ${span(now() - (listedAt || offlineSince))} ago. Check the process and the network; this page keeps trying.`];
  if (!status) return ['', listError ? sentence(listError) : 'Looking at the store'];
  const { store } = status, name = STORES[store.name] || store.name, voting = store.nodes.filter(node => node.votes === 'now').length;
  const node = one => `${one.node} ${one.votes === 'later' ? `votes in ${span((one.votes_in_ms || 0) - (now() - statusAt) + 999)}` : one.votes === 'for_others' ? 'serves instances with other settings' : 'does not answer'}`;
  const silent = store.nodes.filter(one => one.votes !== 'now').map(node).join('; ');
  const wait = store.nodes.every(one => one.votes === 'now' || one.votes === 'later');
  if (store.nodes.length && voting <= store.nodes.length / 2) return ['bad', `${name}: only ${voting} of ${store.nodes.length} vote, so nothing is granted. ${silent}. ${wait ? 'All answer: wait' : 'Start the missing nodes'}; do not restart lockkeeper.`];
  if (!store.up) return ['bad', `${name} does not answer: nothing is granted, and leases end by their TTL. Bring the store back; lockkeeper recovers by itself, do not restart it. (${store.problem})`];
  if (status.draining) return ['warn', 'This instance is shutting down: it grants nothing. Leases stay; use another instance.'];
  if (status.failing) return ['bad', `${name}: the last call failed, and none has succeeded since. (${status.failing})`];
  const young = store.began_empty_ms < 3600000 && `began ${span(store.began_empty_ms + now() - statusAt)} ago with no leases`;
  // Redis tells whole seconds.
  if (young && store.began_empty_ms + 1000 < status.uptime_ms) return ['warn', `${name} ${young}: those from before are lost, and their clients may still be at work. Fencing tokens go on rising.`];
  if (silent) return ['warn', `${name}: ${voting} of ${store.nodes.length} vote; ${silent}`];
  if (store.nodes.length) return ['ok', `${name}: ${voting} of ${store.nodes.length} vote, answers in ${fine(store.latency_ms)}`];
  return ['ok', store.name === 'embedded' ? `${name}, ${status.write_ms === undefined ? 'on disk' : `writes in ${fine(status.write_ms)}`}` : `${name}, answers in ${fine(store.latency_ms)}${young ? `, ${young}` : ''}`];
};
let lastHealth = '';
const renderHealth = () => {
  const [state, text] = health();
  $('store').className = state;
  $('health').className = state === 'ok' ? '' : state;
  set($('store').lastElementChild, text);
  if (state !== lastHealth && lastHealth && state) say(text, true);
  lastHealth = state || lastHealth;
  const counts = status ? [['waiting', status.waiting], ['streams', status.holds], ['refused in 5 min', status.refused_lately]] : [];
  if (status?.held !== undefined) counts.unshift(['held', status.held]);
  const list = $('counts');
  counts.forEach(([name, value], at) => {
    const pair = list.children[at] || list.appendChild(make('div', {}, make('dt'), make('dd')));
    set(pair.firstChild, name);
    set(pair.lastChild, value.toLocaleString('en'));
  });
  while (list.children.length > counts.length) list.lastChild.remove();
  set($('instance'), status ? `${status.instance} · ${status.version}` : '');
  const link = offlineSince ? ['bad', 'offline'] : live === 'live' ? ['ok', 'live'] : ['', live];
  $('live').className = link[0];
  set($('live').lastElementChild, link[1]);
  $('key-open').hidden = !needsKey || !apiKey;
};
const apply = news => {
  const first = !status, other = news.run !== run;
  if (other) { run = news.run; ends = []; }
  status = news; statusAt = now();
  if (news.ends.length) {
    const known = new Set(ends.map(end => end.number));
    ends.push(...news.ends.filter(end => !known.has(end.number)).map(end => ({ ...end, at: now() - end.ago_ms })));
    ends = ends.sort((a, b) => a.at - b.at).slice(-200);
    count(news.ends);
  }
  if (other || news.ends.length) renderEnds();
  remember(news.past);
  if (first || news.changes !== apply.changes) changed();
  apply.changes = news.changes;
  offlineSince = 0;
  renderHealth();
  if (!first) say(`${plural(status.held ?? rows.size, 'key')} held, ${status.waiting} waiting`);
};

// Asks every two seconds while the page is seen. The newest call goes on, and only it.
let turn = 0, askTimer;
const ask = async () => {
  clearTimeout(askTimer);
  const own = ++turn;
  if (locked() || document.hidden) return;
  try {
    const after = ends.reduce((most, end) => Math.max(most, end.number), 0);
    const news = await call('GET', 'ui/status' + (run && after ? `?after=${after}` : ''));
    if (own !== turn) return;
    live = 'live';
    apply(news);
  } catch (error) {
    if (own !== turn) return;
    if (error.status === 401) return askForKey();
    // Asking again would only fill the log of refusals.
    if (error.status === 403) { listError = error; live = 'refused'; render(); return renderHealth(); }
    if (!(error instanceof Refused)) offlineSince ||= now();
    renderHealth();
    render();
  }
  askTimer = setTimeout(ask, 2000);
};
const askForKey = () => {
  if (locked()) return;
  needsKey = true;
  if (apiKey) set($('key-said'), 'Unknown API key.');
  forgetKey();
};
const forgetKey = () => {
  apiKey = '';
  sessionStorage.removeItem('lockkeeper-api-key');
  turn++;
  status = undefined; rows = new Map(); cells.clear(); $('rows').replaceChildren(); ends = []; run = ''; live = 'waiting for an API key'; firstList = true; listError = undefined;
  close();
  renderEnds(); render(); renderHealth();
  $('key-input').value = '';
  $('key-input').focus();
};
const start = () => { begun = true; live = 'connecting'; render(); renderHealth(); ask(); listSoon(0); };

// The details of a key.
let detail, detailTimer;
const show = key => {
  if (open === key && !$('panel').hidden) return;
  open = key; detail = undefined;
  choose(key);
  $('panel').hidden = false;
  $('panel-key').replaceChildren(inertKey(key));
  hideFree();
  set($('free-said'), '');
  renderPanel();
  look();
  render();
  $('panel-key').focus();
};
const close = () => {
  if ($('panel').hidden) return;
  const key = open;
  open = undefined;
  clearTimeout(detailTimer);
  $('panel').hidden = true;
  render();
  (cells.get(key)?.name || $('held')).focus();
};
const look = async () => {
  clearTimeout(detailTimer);
  const key = open;
  if (!key || document.hidden) return;
  try {
    // A service that tells since when tells the line as well.
    const line = [...rows.values()].some(row => !row.least) ? '?waiters=100' : '';
    detail = await call('GET', `locks/${path(key)}${line}`);
    detail.at = now();
  } catch (error) { detail = { ...detail, problem: sentence(error) }; }
  if (key !== open) return;
  renderPanel();
  detailTimer = setTimeout(look, 2000);
};
const nameOf = ({ owner }) => owner ? inert(owner) : make('i', '', 'gave no name');
const lease = one => make('li', {}, make('span', '', one.ttl_ms === undefined ? 'no end' : `${span(one.ttl_ms - (now() - detail.at))} left`), partOf(one) ? make('b', '', `${partOf(one)} `) : '', nameOf(one),
  make('div', 'dim', one.held_ms === undefined ? '' : `held for ${span(one.held_ms + now() - detail.at)}, since ${since(one.held_ms + now() - detail.at)}, `, 'fencing token ', make('code', '', String(one.fencing_token))));
const renderPanel = () => {
  const facts = make('dl', 'facts'), fact = (name, ...text) => facts.append(make('dt', '', name), make('dd', {}, ...text));
  const inside = [], row = rows.get(open);
  if (!detail) { $('facts').replaceChildren(make('p', 'dim', 'Looking…')); return renderFree(); }
  if (detail.problem) inside.push(make('p', 'bad-text', `${detail.problem}.${detail.key ? ' Shown is the last known state.' : ''}`));
  if (detail.key && !detail.held) inside.push(make('p', 'dim', 'This key is free.'));
  if (detail.held) {
    if (detail.holders) fact('Holders', ownerOf(detail));
    else {
      fact('Holder', detail.owner ? inert(detail.owner) : make('span', 'dim', detail.fencing_token === undefined ? 'a client on the store directly' : 'gave no name'));
      if (detail.fencing_token !== undefined) fact('Fencing token', make('span', 'mono', String(detail.fencing_token)));
      const ms = detail.held_ms + now() - detail.at;
      const held = detail.held_ms !== undefined ? `${span(ms)}, since ${exactly(ms)}` : row ? `${row.least ? 'at least ' : ''}${span(heldFor(row))}` : '';
      if (held) fact('Held for', held);
    }
    fact(detail.holders ? 'Last ends in' : 'Time left', timeLeft(detail.ttl_ms === undefined ? undefined : detail.ttl_ms - (now() - detail.at)));
    fact('Kind', kind(detail));
  }
  inside.push(facts);
  if (detail.leases) {
    inside.push(make('h3', '', 'Leases'), make('ul', 'queue leases', ...[...detail.leases].sort((a, b) => (a.slot || 0) - (b.slot || 0)).map(lease)));
    if (detail.holders > detail.leases.length) inside.push(make('p', 'dim', `and ${detail.holders - detail.leases.length} more`));
  }
  if (detail.key) inside.push(make('h3', '', detail.waiters ? `Waiting: ${detail.waiters}` : 'Nobody waits'));
  if (detail.queue?.length) {
    inside.push(make('ol', 'queue', ...detail.queue.map(one => make('li', {}, make('span', '', short(one.waited_ms)), nameOf(one)))));
    if (detail.waiters > detail.queue.length) inside.push(make('p', 'dim', `and ${detail.waiters - detail.queue.length} more`));
  } else if (detail.waiters) inside.push(make('p', 'dim', 'This service does not tell their names.'));
  const last = ends.filter(end => end.key === open).sort((a, b) => b.at - a.at).slice(0, 5);
  if (last.length) {
    inside.push(make('h3', '', 'Last ends of this key, on this instance'), make('ul', 'queue', ...last.map(end => make('li', {},
      make('span', { title: exactly(now() - end.at) }, `${coarse(now() - end.at)} ago, ${since(now() - end.at)}`), make('b', 'why ' + end.why, end.why.replace('_', ' ')), ' ', end.owner ? inert(end.owner) : '', end.held_ms === undefined ? '' : `, held ${short(end.held_ms)}`))));
  }
  inside.push(make('h3', '', 'Look at it'), make('code', 'curl', `curl ${shell(`${base}/locks/${path(open)}`)}${curlKey()}`));
  $('facts').replaceChildren(...inside);
  renderFree();
};
const renderFree = () => {
  const held = Boolean(detail?.held), allowed = may('admin'), button = $('free-open');
  $('free-box').classList.toggle('danger', !$('free-form').hidden);
  button.hidden = !$('free-form').hidden;
  button.disabled = !held || !allowed;
  set($('free-why'), !allowed ? 'Needs the permission admin, which this API key lacks.' : held ? `Ends ${detail.holders ? 'one of its leases, or all' : 'the lease of its holder'}, by force.` : detail?.key ? 'Nothing to free.' : '');
  $('free-why').hidden = !$('free-form').hidden;
  const chosen = $('free-which').value, one = chosen > 0 ? chosenLease() : detail, all = chosen === 'all';
  const unsure = !one || (held && detail.holders && !chosen);
  $('free-do').disabled = !held || unsure || $('free-key').value !== open || !$('free-reason').value.trim();
  if (!held || $('free-form').hidden) return;
  offerLeases();
  set($('free-do'), chosen > 0 ? 'End this lease' : detail.holders ? 'End all leases' : 'Free this key');
  if (unsure) { set($('free-next'), one ? 'Choose whose lease ends.' : 'That lease has ended by now.'); return; }
  const many = all && detail.holders > 1, who = many ? `All ${detail.holders} holders` : one.owner ? inert(one.owner) : all || !detail.holders ? 'Its holder' : 'The holder of that lease';
  const first = detail.queue?.[0], gets = detail.holders ? ' comes in as soon as there is room.' : ' gets it at once.';
  const next = first ? [' The next in line, ', make('b', {}, first.owner ? inert(first.owner) : 'which gave no name'), ',', gets] :
    [detail.waiters ? ' The next in line' + gets : detail.holders ? ' Nobody waits.' : ' Nobody waits: the key is free for the next to ask.'];
  $('free-next').replaceChildren(make('b', {}, who), many ? ' lose their leases at once, learn it at their next refresh, and may still write until then: only fencing tokens stop that.' : ' loses the lease at once, learns it at its next refresh, and may still write until then: only fencing tokens stop that.', ...next);
};
const hideFree = () => { $('free-form').hidden = true; $('free-key').value = $('free-reason').value = ''; $('free-which').replaceChildren(); };
// Of a shared key a person chooses. What was offered stays: nothing else may take its place under the hand.
const chosenLease = () => (detail?.leases || []).concat(detail || []).find(one => one.fencing_token === Number($('free-which').value));
const offerLeases = () => {
  const which = $('free-which'), offered = [...which.options].map(option => option.value);
  const offer = (value, text) => { if (!offered.includes(value)) which.append(make('option', { value, textContent: text })); };
  $('free-choice').hidden = !detail.holders && !offered.length;
  if (!detail.holders) return;
  offer('', 'Choose');
  offer('all', 'All leases');
  for (const one of detail.leases || []) offer(String(one.fencing_token), [partOf(one), one.owner && plain(one.owner), one.fencing_token].filter(Boolean).join(', '));
};
const openFree = () => {
  if (!detail?.held || !may('admin')) return;
  $('free-form').hidden = false;
  set($('free-said'), '');
  renderFree();
  (detail.holders ? $('free-which') : $('free-key')).focus();
};
const free = async () => {
  const key = open, out = $('free-said'), chosen = $('free-which').value;
  const number = chosen > 0 ? chosen : detail?.holders ? undefined : detail?.fencing_token, only = number === undefined ? '' : `&fencing_token=${number}`;
  $('free-do').disabled = true;
  try {
    const taken = await call('DELETE', `admin/locks/${path(key)}?reason=${encodeURIComponent($('free-reason').value.trim())}${only}`);
    const after = await call('GET', `locks/${path(key)}`).catch(() => undefined);
    const lease = taken.holders > 1 ? [`${taken.holders} holders lost their leases. `] : [taken.owner ? inert(taken.owner) : 'The holder', ` lost the lease${taken.fencing_token === undefined ? '' : ` ${taken.fencing_token}`}. `];
    out.className = 'said';
    out.replaceChildren('Freed. ', ...lease, ...(after?.held ? ['Held now by ', ownerOf(after) ? inert(ownerOf(after)) : 'another client', '.'] : after ? ['The key is free.'] : []));
    hideFree();
  } catch (error) {
    out.className = 'said bad';
    set(out, error.code === 'lock_lost' ? 'That lease had already ended: nothing was freed.' : `Not freed: ${why(error)}.${error instanceof Refused ? '' : ' It may have taken effect; look at the key.'}`);
  }
  if (open === key) { await look(); (out.isConnected ? $('panel-key') : $('held')).focus(); }
  listSoon(0);
};

// Reservations by hand, by their keys: as a stream, or for a fixed time.
const mine = new Map();
const showToken = (grant, what) => {
  $('token').dataset.key = grant.key;
  $('token-proof').hidden = $('token-copy').hidden = false;
  set($('token-title'), 'Reserved');
  set($('token-what'), what);
  set($('token-text'), grant.token);
  set($('token-curl'), `curl -X DELETE ${shell(`${base}/locks/${path(grant.key)}`)} -H "Lock-Token: ${grant.token}"${curlKey()}`);
  $('reserve').close();
  $('token').showModal();
};
const over = (key, lost) => {
  mine.get(key).lost = lost;
  const text = `Your reservation of ${plain(key)} has ended: ${lost}`;
  if ($('token').open && $('token').dataset.key === key) {
    set($('token-title'), 'Reservation ended');
    set($('token-what'), `${text}.`);
    $('token-proof').hidden = $('token-copy').hidden = true;
  }
  renderMine();
  say(text, true);
};
const renderMine = () => {
  const ended = [...mine].filter(([, { lost }]) => lost);
  document.title = (ended.length > 1 ? `${ended.length} reservations ended · ` : ended.length ? `Ended: ${plain(ended[0][0])} · ` : '') + 'lockkeeper';
  $('mine').replaceChildren(...[...mine].map(([key, { stop, until, lost }]) => {
    const done = button(lost || !stop ? 'Close' : 'Give back', () => { mine.delete(key); stop?.abort(); renderMine(); });
    return make('p', { className: lost ? 'note' : 'note plain' }, lost ? 'Your reservation of ' : 'You hold ', make('b', {}, inert(key)), lost ? ` has ended: ${lost}.` : stop ? ' while this tab is open.' : ` until ${exactly(now() - until)}.`, done);
  }));
};
// Those for a fixed time end by an end that was seen, or by their time unless the list still has them.
const watchMine = () => {
  for (const [key, { stop, number, until, lost }] of mine) {
    if (stop || lost) continue;
    const end = ends.find(end => end.key === key && end.fencing_token === number);
    if (end) over(key, end.why.replace('_', ' '));
    else if (until < now() && listedAt > until && rows.get(key)?.number !== number) over(key, 'its time is over');
  }
};
const hold = async (key, body) => {
  const stop = new AbortController();
  const answer = await fetch(`hold/${path(key)}`, { method: 'POST', headers: headers({ 'Content-Type': 'application/json' }), body: JSON.stringify(body), signal: stop.signal });
  if (!answer.ok) throw await refusal(answer);
  let lost = 'the connection broke';
  read(answer, '\n', line => {
    if (!line) return;
    const event = JSON.parse(line);
    if (event.event === 'acquired') {
      mine.set(key, { stop });
      renderMine();
      showToken(event, `${plain(key)} is yours while this tab is open. Closing the tab gives it back.`);
    } else if (event.event === 'lost') lost = event.reason.replace('_', ' ');
    else if (event.event === 'draining') lost = 'the instance shuts down';
  }).catch(() => {}).then(() => { if (mine.get(key)?.stop === stop) over(key, lost); });
};
const reserve = async () => {
  const key = $('reserve-key').value, owner = `${$('reserve-name').value.trim()}: ${$('reserve-reason').value.trim()}`, said = $('reserve-said');
  set(said, '');
  $('reserve-do').disabled = true;
  try {
    if (new TextEncoder().encode(owner).length > 256) throw new Refused(0, { detail: 'name and reason have more than 256 bytes together' });
    if ($('reserve-fixed').checked) {
      const grant = await call('POST', `locks/${path(key)}`, { ttl_ms: Number($('reserve-ttl').value), wait_ms: 0, owner });
      mine.set(key, { number: grant.fencing_token, until: now() + grant.ttl_ms });
      renderMine();
      showToken(grant, `${plain(key)} is yours until ${exactly(-grant.ttl_ms)}.`);
    } else await hold(key, { wait_ms: 0, owner });
    listSoon(0);
  } catch (error) { set(said, `Not reserved: ${why(error)}.`); }
  $('reserve-do').disabled = false;
};

// Load: a point every 5 s for 15 minutes, from what this page has seen, and before that from what the
// instance has counted.
const POINTS = 180, points = [];
const remember = past => {
  if (!past || points.length) return;
  points.push(...past.map(({ ago_ms, grants, refusals, write_ms }) => ({ at: now() - ago_ms, grants, refusals, write: write_ms })));
  renderCharts();
};
let recent = [], before;
const count = news => { recent.push(...news.filter(end => matches(end.key, end.owner, end.held_ms) && end.ago_ms < 10000)); recent = recent.slice(-1000); };
const quantile = (values, q) => values.length ? values.sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * q))] : undefined;
const rate = value => value === undefined ? '–' : value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString('en');
const time = value => value === undefined ? '–' : fine(value);
const CHARTS = [
  { title: 'Acquires a second', names: ['granted', 'refused'], of: ['grants', 'refusals'], show: rate },
  { title: 'Wait in line', names: ['p50', 'p99'], of: ['wait50', 'wait99'], show: time },
  { title: 'Hold time', names: ['p50', 'p99'], of: ['hold50', 'hold99'], show: time },
  { title: 'Store', names: ['look', 'write'], of: ['look', 'write'], show: time },
];
const sample = () => {
  if (!status || offlineSince || document.hidden) { before = undefined; return; }
  const at = now(), held = recent.map(end => end.held_ms).filter(ms => ms !== undefined), waits = recent.map(end => end.waited_ms).filter(ms => ms !== undefined);
  const point = { at, look: status.store.up ? status.store.latency_ms : undefined, write: status.write_ms, hold50: quantile(held, .5), hold99: quantile(held, .99), wait50: quantile(waits, .5), wait99: quantile(waits, .99) };
  if (before && before.run === run && status.granted >= before.granted) {
    const seconds = (at - before.at) / 1000;
    point.grants = (status.granted - before.granted) / seconds;
    point.refusals = (status.refused - before.refused) / seconds;
  }
  before = { at, run, granted: status.granted, refused: status.refused };
  points.push(point);
  if (points.length > POINTS) points.shift();
  recent = [];
  renderCharts();
};
const svg = (name, attributes) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  return node;
};
const drawn = CHARTS.map(chart => {
  const legend = make('p'), lines = chart.of.map((_, at) => svg('path', { class: at ? 'two' : '' })), dots = chart.of.map(() => svg('path', { class: 'dots' }));
  const values = chart.names.map((name, at) => {
    const value = make('b', '', '–');
    legend.append(make('span', {}, make('i', { className: at ? 'swatch two' : 'swatch' }), name + ' ', value));
    return value;
  });
  const top = make('span', 'dim');
  const picture = svg('svg', { viewBox: '0 0 180 50', preserveAspectRatio: 'none', 'aria-hidden': 'true' });
  picture.append(svg('line', { x1: 0, x2: 180, y1: 50, y2: 50 }), ...lines, ...dots);
  const table = make('table', {}, make('caption', 'vh', chart.title), make('thead', {}, make('tr', {}, ...['Ago', ...chart.names].map(name => make('th', { scope: 'col', textContent: name })))));
  const body = table.appendChild(make('tbody'));
  const scroll = make('div', { className: 'scroll', tabIndex: 0 }, table), more = make('details', {}, make('summary', '', 'As a table'), scroll);
  scroll.setAttribute('role', 'region');
  scroll.setAttribute('aria-label', chart.title);
  more.ontoggle = () => renderCharts();
  $('charts').append(make('div', 'chart', make('h3', '', chart.title, top), legend, picture, more));
  return { chart, lines, dots, values, top, more, body };
});
const renderCharts = () => {
  for (const { chart, lines, dots, values, top, more, body } of drawn) {
    const all = points.flatMap(point => chart.of.map(of => point[of])).filter(value => value !== undefined), most = Math.max(...all, 0);
    chart.of.forEach((of, at) => {
      let line = '', alone = '';
      points.forEach((point, place) => {
        const value = point[of], joined = points[place - 1]?.[of] !== undefined;
        if (value === undefined) return;
        const wide = Math.max(24, points.length), x = 180 * (wide - points.length + place + 1) / wide, y = (most ? 49 - 47 * value / most : 49).toFixed(1);
        line += `${joined ? 'L' : 'M'}${x} ${y}`;
        if (!joined && points[place + 1]?.[of] === undefined) alone += `M${x} ${y}h0`;
      });
      lines[at].setAttribute('d', line);
      dots[at].setAttribute('d', alone);
      set(values[at], chart.show(points.at(-1)?.[of]));
    });
    set(top, most ? `up to ${chart.show(most)}` : '');
    if (more.open) {
      body.replaceChildren(...points.map(point => make('tr', {}, make('td', '', span(now() - point.at)), ...chart.of.map(of => make('td', '', chart.show(point[of]))))).reverse());
    }
  }
};

// Hands.
const move = by => {
  const all = [...$('rows').children], at = all.findIndex(tr => tr.dataset.key === current);
  const next = all[inRow() ? Math.min(all.length - 1, Math.max(0, at + by)) : Math.max(0, at)];
  next?.querySelector('.name')?.focus();
};
addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches?.('input, textarea, select');
  if (event.key === 'Escape' && !document.querySelector('dialog[open]')) {
    if (!$('panel').hidden && !$('free-form').hidden) { hideFree(); renderFree(); $('free-open').focus(); }
    else if (!$('panel').hidden && event.target !== $('filter')) close();
    else if (event.target === $('filter')) { event.preventDefault(); $('held').focus(); } // A search field would be emptied.
    return;
  }
  if (event.target === $('filter') && ['Enter', 'ArrowDown'].includes(event.key)) { event.preventDefault(); move(0); }
  if (typing || document.querySelector('dialog[open]')) return;
  const act = { '/': () => $('filter').focus(), j: () => move(1), k: () => move(-1), ArrowDown: inRow() && (() => move(1)), ArrowUp: inRow() && (() => move(-1)), '?': () => $('help').showModal(),
    f: async () => { if (!open && current) show(current); if (!detail) await look(); openFree(); } }[event.key];
  if (act) { event.preventDefault(); act(); }
});
const heads = document.querySelectorAll('th[data-sort]');
heads.forEach(th => {
  th.querySelector('button').onclick = () => {
    const by = th.dataset.sort;
    sort = { by, up: sort.by === by ? !sort.up : ['key', 'owner', 'left', 'kind'].includes(by) };
    arrows();
    render();
  };
});
const arrows = () => heads.forEach(th => {
  const own = th.dataset.sort === sort.by, button = th.querySelector('button');
  if (own) th.setAttribute('aria-sort', sort.up ? 'ascending' : 'descending'); else th.removeAttribute('aria-sort');
  // Not broken before the arrow, where the column is narrow.
  set(button, button.textContent.replace(/\u00a0[↑↓]$/, '') + (own ? (sort.up ? '\u00a0↑' : '\u00a0↓') : ''));
});
let filterTimer;
$('filter').oninput = () => { clearTimeout(filterTimer); filterTimer = setTimeout(() => useFilter($('filter').value.trimStart()), 150); };
const more = () => { if (!$('more').hidden) { wanted += 100; list(); } };
$('more').onclick = more;
new IntersectionObserver(seen => { if (seen.some(one => one.isIntersecting) && $('held').scrollTop > 0) more(); }, { root: $('held'), rootMargin: '200px' }).observe($('held').appendChild(make('div')));
$('panel-close').onclick = close;
$('panel-copy').onclick = () => copy(open);
$('free-open').onclick = openFree;
$('free-cancel').onclick = () => { hideFree(); renderFree(); $('free-open').focus(); };
$('free-key').oninput = $('free-reason').oninput = $('free-which').onchange = renderFree;
$('free-form').onsubmit = event => { event.preventDefault(); if (!$('free-do').disabled) free(); };
$('reserve-open').onclick = () => { set($('reserve-said'), may('acquire') ? '' : 'This API key lacks the permission acquire.'); $('reserve-do').disabled = !may('acquire'); $('reserve').showModal(); };
$('reserve-form').onsubmit = event => { event.preventDefault(); reserve(); };
$('help-open').onclick = () => $('help').showModal();
document.querySelectorAll('[data-close]').forEach(button => { button.onclick = () => button.closest('dialog').close(); });
$('token').onclose = () => { set($('token-text'), ''); set($('token-curl'), ''); };
$('token-copy').onclick = () => copy($('token-text').textContent);
$('key-open').onclick = () => { set($('key-said'), ''); forgetKey(); };
$('key-form').onsubmit = event => {
  event.preventDefault();
  const given = $('key-input').value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) { set($('key-said'), 'An API key has only letters, digits and signs.'); return; }
  apiKey = given;
  $('key-input').value = '';
  set($('key-said'), '');
  sessionStorage.setItem('lockkeeper-api-key', apiKey);
  start();
};
addEventListener('hashchange', fromUrl);
addEventListener('beforeunload', event => { if ([...mine.values()].some(one => one.stop && !one.lost)) event.preventDefault(); });
document.addEventListener('visibilitychange', () => {
  ask();
  if (document.hidden) return;
  listSoon(0); look();
});
setInterval(() => {
  if (document.hidden) return;
  for (const cell of cells.values()) tick(cell, cell.row);
  for (const tr of $('end-rows').children) { const end = ends.find(one => one.number === Number(tr.dataset.number)); if (end) set(tr.firstChild, coarse(now() - end.at)); }
  renderHealth();
  renderStuck();
  watchMine();
  if (listError && rows.size) renderFoot(shown().length, $('rows').children.length);
  if (open && detail && !$('facts').contains(document.activeElement)) renderPanel();
}, 1000);
setInterval(sample, 5000);

arrows();
fromUrl();
render();
(async () => {
  for (;;) {
    try { needsKey = (await call('GET', 'ui/access')).api_keys; break; } catch { offlineSince ||= now(); renderHealth(); await new Promise(done => setTimeout(done, 2000)); }
  }
  offlineSince = 0;
  if (locked()) { forgetKey(); return; }
  start();
})();
})();
