
'use strict';
const server = document.body.dataset.server;
const said = document.querySelector('.said');

// The examples ask the service that shows this page.
for (const code of document.querySelectorAll('.example code')) {
  const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    texts.currentNode.data = texts.currentNode.data.replaceAll(server, location.origin);
  }
}

// The clipboard of `navigator` is there on https and on this machine only.
const copy = async text => {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement('textarea');
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  if (!done) throw new Error('refused');
};

let silence;
const say = text => {
  said.textContent = text;
  clearTimeout(silence);
  silence = setTimeout(() => { said.textContent = ''; }, 3000);
};

for (const button of document.querySelectorAll('.copy')) {
  button.hidden = false;
  button.addEventListener('click', async () => {
    const code = button.parentElement.querySelector('code');
    try {
      await copy(code.innerText); // What is shown, with or without the API key.
      say('Copied');
    } catch {
      getSelection().selectAllChildren(code);
      say('Selected; copy it with your keyboard');
    }
    button.focus();
  });
}

// A tab remembers the choice of its user.
const inputs = document.querySelectorAll('.switch input');
const chosen = sessionStorage.getItem('examples')?.split(' ');
for (const input of inputs) {
  if (chosen) input.checked = chosen.includes(input.id);
  input.addEventListener('change', () => {
    const ids = [...inputs].filter(one => one.checked).map(one => one.id);
    sessionStorage.setItem('examples', ids.join(' '));
  });
}
