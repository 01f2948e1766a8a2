-- A store of schema version 1 with two sessions; input of the migration tests. Frozen: the
-- tables are those of that version, whatever session_schema.sql says later.
CREATE TABLE session (
    number            INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE CHECK (length(id) = 36),
    status            INTEGER NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 4),
    created_ms        INTEGER NOT NULL,
    ended_ms          INTEGER NOT NULL DEFAULT 0,
    exit_status       INTEGER NOT NULL DEFAULT 0,
    task              TEXT NOT NULL,
    workspace         TEXT NOT NULL,
    model             TEXT NOT NULL,
    model_digest      TEXT NOT NULL,
    backend           TEXT NOT NULL,
    numerics_version  TEXT NOT NULL,
    program_version   TEXT NOT NULL,
    seed              INTEGER NOT NULL,
    temperature       REAL NOT NULL,
    top_p             REAL NOT NULL,
    effort            INTEGER NOT NULL,
    time_ms_max       INTEGER NOT NULL,
    tokens_max        INTEGER NOT NULL,
    commit_before     TEXT NOT NULL,
    commit_after      TEXT NOT NULL DEFAULT '',
    verdict           TEXT NOT NULL DEFAULT '',
    stop_reason       TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX session_by_status ON session (status) WHERE status = 0;

CREATE TABLE agent (
    number            INTEGER PRIMARY KEY,
    id                TEXT NOT NULL UNIQUE CHECK (length(id) = 36),
    session           INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,
    parent            INTEGER REFERENCES agent (number) ON DELETE CASCADE,
    created_ms        INTEGER NOT NULL,
    name              TEXT NOT NULL,
    tools             TEXT NOT NULL,
    seed              INTEGER NOT NULL,
    temperature       REAL NOT NULL,
    top_p             REAL NOT NULL,
    effort            INTEGER NOT NULL
) STRICT;
CREATE INDEX agent_by_session ON agent (session);
CREATE INDEX agent_by_parent ON agent (parent);

CREATE TABLE turn (
    number            INTEGER PRIMARY KEY,
    agent             INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,
    position          INTEGER NOT NULL CHECK (position >= 0),
    is_finished       INTEGER NOT NULL DEFAULT 0 CHECK (is_finished IN (0, 1)),
    started_ms        INTEGER NOT NULL,
    ended_ms          INTEGER NOT NULL DEFAULT 0,
    prompt_tokens     INTEGER NOT NULL DEFAULT 0 CHECK (prompt_tokens >= 0),
    evaluated_tokens  INTEGER NOT NULL DEFAULT 0 CHECK (evaluated_tokens >= 0),
    reused_tokens     INTEGER NOT NULL DEFAULT 0 CHECK (reused_tokens >= 0),
    rebuilt_tokens    INTEGER NOT NULL DEFAULT 0 CHECK (rebuilt_tokens >= 0),
    hit_position      INTEGER NOT NULL DEFAULT 0 CHECK (hit_position >= 0),
    miss_reason       TEXT NOT NULL DEFAULT '',
    window_source     TEXT NOT NULL DEFAULT '',
    lineage           TEXT NOT NULL DEFAULT '',
    decoder_lineage   TEXT NOT NULL DEFAULT '',
    backend           TEXT NOT NULL DEFAULT '',
    numerics_version  TEXT NOT NULL DEFAULT '',
    seed              INTEGER NOT NULL DEFAULT 0,
    temperature       REAL NOT NULL DEFAULT 0,
    top_p             REAL NOT NULL DEFAULT 0,
    effort            INTEGER NOT NULL DEFAULT 0,
    output_tokens     INTEGER NOT NULL DEFAULT 0 CHECK (output_tokens >= 0),
    prefill_ms        INTEGER NOT NULL DEFAULT 0,
    decode_ms         INTEGER NOT NULL DEFAULT 0,
    stop_reason       TEXT NOT NULL DEFAULT '',
    UNIQUE (agent, position),
    CHECK (evaluated_tokens + reused_tokens = prompt_tokens)
) STRICT;

CREATE TABLE call (
    number            INTEGER PRIMARY KEY,
    turn              INTEGER NOT NULL REFERENCES turn (number) ON DELETE CASCADE,
    status            INTEGER NOT NULL DEFAULT 0 CHECK (status BETWEEN 0 AND 6),
    name              BLOB NOT NULL,
    arguments         BLOB NOT NULL,
    started_ms        INTEGER NOT NULL,
    ended_ms          INTEGER NOT NULL DEFAULT 0,
    duration_ms       INTEGER NOT NULL DEFAULT 0,
    text              BLOB NOT NULL DEFAULT x'',
    output            BLOB NOT NULL DEFAULT x'',
    output_bytes      INTEGER NOT NULL DEFAULT 0 CHECK (output_bytes >= 0),
    output_gap_at     INTEGER NOT NULL DEFAULT 0 CHECK (output_gap_at >= 0),
    text_is_truncated INTEGER NOT NULL DEFAULT 0 CHECK (text_is_truncated IN (0, 1)),
    exit_status       INTEGER,
    commit_before     TEXT NOT NULL,
    commit_after      TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX call_by_turn ON call (turn);
CREATE INDEX call_open ON call (status) WHERE status = 0;

-- Texts of a model may be torn inside a character, so they are kept as bytes.
CREATE TABLE message (
    number            INTEGER PRIMARY KEY,
    turn              INTEGER NOT NULL REFERENCES turn (number) ON DELETE CASCADE,
    call              INTEGER REFERENCES call (number) ON DELETE CASCADE,
    created_ms        INTEGER NOT NULL,
    role              TEXT NOT NULL,
    text              BLOB NOT NULL,
    reasoning         BLOB NOT NULL,
    calls             BLOB NOT NULL
) STRICT;
CREATE INDEX message_by_turn ON message (turn);
CREATE INDEX message_by_call ON message (call);

-- ids: count little-endian int32; log_probabilities: count little-endian float32, or null.
CREATE TABLE token_run (
    number            INTEGER PRIMARY KEY,
    turn              INTEGER NOT NULL REFERENCES turn (number) ON DELETE CASCADE,
    kind              INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 1),
    position          INTEGER NOT NULL CHECK (position >= 0),
    count             INTEGER NOT NULL CHECK (count >= 0),
    ids               BLOB NOT NULL,
    log_probabilities BLOB,
    CHECK (length(ids) = 4 * count),
    CHECK (log_probabilities IS NULL OR length(log_probabilities) = 4 * count)
) STRICT;
CREATE INDEX token_run_by_turn ON token_run (turn);

PRAGMA application_id=1215460456;
PRAGMA user_version=1;
INSERT INTO session (id, status, created_ms, ended_ms, task, workspace, model, model_digest, backend, numerics_version, program_version, seed, temperature, top_p, effort, time_ms_max, tokens_max, commit_before)
VALUES ('01993a00-0000-7000-8000-000000000001', 1, 1790000000000, 1790000001000, 'first task', '/srv/a', 'model', '', 'cpu', '1', '0.1.0', -6, 0.8, 0.95, 50, 600000, 0, ''),
       ('01993a00-0001-7000-8000-000000000002', 4, 1790000002000, 0, 'second task', '/srv/b', 'model', '', 'cpu', '1', '0.1.0', 1, 0, 1, 0, 0, 0, '');
INSERT INTO agent (id, session, parent, created_ms, name, tools, seed, temperature, top_p, effort)
VALUES ('01993a00-0002-7000-8000-000000000003', 1, NULL, 1790000000001, 'main', '', 1, 0, 1, 50),
       ('01993a00-0003-7000-8000-000000000004', 1, 1, 1790000000002, 'child', '', 1, 0, 1, 50);
INSERT INTO turn (agent, position, is_finished, started_ms, ended_ms, prompt_tokens, evaluated_tokens, reused_tokens)
VALUES (1, 0, 1, 1790000000003, 1790000000004, 100, 60, 40), (1, 1, 0, 1790000000005, 0, 0, 0, 0);
INSERT INTO call (turn, status, name, arguments, started_ms, ended_ms, text, output, output_bytes, exit_status, commit_before)
VALUES (1, 1, x'7368656c6c', x'7b7d', 1790000000004, 1790000000005, x'5b6578697420305d', x'00ff', 2, 0, 'abc');
INSERT INTO message (turn, call, created_ms, role, text, reasoning, calls)
VALUES (1, NULL, 1790000000003, 'user', x'666978', x'', x''), (2, 1, 1790000000005, 'tool', x'5b6578697420305d', x'', x'');
INSERT INTO token_run (turn, kind, position, count, ids, log_probabilities)
VALUES (1, 1, 100, 2, x'0100000002000000', x'0000003f0000803f');
