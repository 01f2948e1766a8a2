-- Tables of the session store, schema version 5. Embedded into the program at build and run once,
-- in one transaction, on an empty database. A change is a new version: a step in
-- session_migration.c plus the same change here. Times are milliseconds since 1970-01-01 UTC;
-- statuses are the enumerators of session.h, which are part of the format and never renumbered.

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
    stop_reason       TEXT NOT NULL DEFAULT '',
    window_mode       TEXT NOT NULL DEFAULT '',
    settings          TEXT NOT NULL DEFAULT '',
    worktree_of       TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX session_by_status ON session (status) WHERE status = 0;

-- A session that went on after its end: what that end was, and what runs it from then on.
CREATE TABLE resumption (
    number            INTEGER PRIMARY KEY,
    session           INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,
    resumed_ms        INTEGER NOT NULL,
    turns_before      INTEGER NOT NULL CHECK (turns_before >= 0),
    backend           TEXT NOT NULL,
    numerics_version  TEXT NOT NULL,
    program_version   TEXT NOT NULL,
    commit_before     TEXT NOT NULL,
    status            INTEGER NOT NULL CHECK (status BETWEEN 1 AND 4),
    ended_ms          INTEGER NOT NULL,
    exit_status       INTEGER NOT NULL,
    verdict           TEXT NOT NULL,
    stop_reason       TEXT NOT NULL,
    commit_after      TEXT NOT NULL
) STRICT;
CREATE INDEX resumption_by_session ON resumption (session);

-- fork_of is the turn behind which the agent goes on: that turn and what its own agent had before it come
-- first, as they were when the fork was made (rewinds up to fork_rewind; of that turn the messages up to
-- fork_message, NULL: all). Nothing of it is copied, so a session with forks cannot be deleted before them.
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
    effort            INTEGER NOT NULL,
    settings          TEXT NOT NULL DEFAULT '',
    fork_of           INTEGER REFERENCES turn (number),
    fork_rewind       INTEGER NOT NULL DEFAULT 0,
    fork_message      INTEGER
) STRICT;
CREATE INDEX agent_by_fork ON agent (fork_of) WHERE fork_of IS NOT NULL;
CREATE INDEX agent_by_session ON agent (session);
CREATE INDEX agent_by_parent ON agent (parent);

-- settings are those of the sampler and of what ends a generation beside seed, temperature, top_p and
-- effort: one JSON object, "" when not known. lineage is the root lineage, block_lineage the one that the turn's blocks are filed under; replays
-- are the window replays that the content depends on ("encoder@256 decoder@1800", "" for none).
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
    block_lineage     TEXT NOT NULL DEFAULT '',
    replays           TEXT NOT NULL DEFAULT '',
    rebuilt_from      INTEGER NOT NULL DEFAULT 0 CHECK (rebuilt_from >= 0),
    miss_token        INTEGER NOT NULL DEFAULT 0 CHECK (miss_token >= 0),
    restored_host     INTEGER NOT NULL DEFAULT 0 CHECK (restored_host >= 0),
    restored_disk     INTEGER NOT NULL DEFAULT 0 CHECK (restored_disk >= 0),
    settings          TEXT NOT NULL DEFAULT '',
    stop_detail       TEXT NOT NULL DEFAULT '',
    drafted           INTEGER NOT NULL DEFAULT 0 CHECK (drafted >= 0),
    accepted          INTEGER NOT NULL DEFAULT 0 CHECK (accepted >= 0),
    preempted         INTEGER NOT NULL DEFAULT 0 CHECK (preempted >= 0),
    parent_seed       INTEGER NOT NULL DEFAULT 0,
    fork_index        INTEGER NOT NULL DEFAULT -1 CHECK (fork_index >= -1),
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

-- Who allowed or refused what: a call, a host of the network, a hook, a server. kind, subject and decider
-- are words of session.h.
CREATE TABLE decision (
    number            INTEGER PRIMARY KEY,
    session           INTEGER NOT NULL REFERENCES session (number) ON DELETE CASCADE,
    turn              INTEGER REFERENCES turn (number) ON DELETE CASCADE,
    call              INTEGER REFERENCES call (number) ON DELETE CASCADE,
    decided_ms        INTEGER NOT NULL,
    is_allowed        INTEGER NOT NULL CHECK (is_allowed IN (0, 1)),
    kind              TEXT NOT NULL,
    subject           TEXT NOT NULL,
    decider           TEXT NOT NULL,
    rule              TEXT NOT NULL,
    reason            TEXT NOT NULL
) STRICT;
CREATE INDEX decision_by_session ON decision (session);
CREATE INDEX decision_by_turn ON decision (turn);
CREATE INDEX decision_by_call ON decision (call);

-- The turn begins a new context, which takes the place of all that precedes it.
CREATE TABLE compaction (
    turn              INTEGER PRIMARY KEY REFERENCES turn (number) ON DELETE CASCADE,
    compacted_ms      INTEGER NOT NULL,
    tokens_before     INTEGER NOT NULL CHECK (tokens_before >= 0),
    tokens_after      INTEGER NOT NULL CHECK (tokens_after >= 0),
    pruned            INTEGER NOT NULL CHECK (pruned >= 0),
    summary           BLOB NOT NULL
) STRICT;

-- Turns of an agent above `position` that were there then (numbers up to last_turn) are no part of its
-- context any more; -1 leaves none. NULL: only the workspace went back.
CREATE TABLE rewind (
    number            INTEGER PRIMARY KEY AUTOINCREMENT,
    agent             INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,
    rewound_ms        INTEGER NOT NULL,
    position          INTEGER CHECK (position >= -1),
    last_turn         INTEGER NOT NULL,
    commit_before     TEXT NOT NULL,
    commit_after      TEXT NOT NULL
) STRICT;
CREATE INDEX rewind_by_agent ON rewind (agent);

-- Agents on one task under one budget, below the agent `root`, which stands for the whole. strategy, outcome
-- and the words of node are those of session_swarm.h. Shares: 9223372036854775807 is no limit.
CREATE TABLE swarm (
    number            INTEGER PRIMARY KEY,
    root              INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,
    started_ms        INTEGER NOT NULL,
    strategy          TEXT NOT NULL,
    reason            TEXT NOT NULL,
    verifier          TEXT NOT NULL,
    settings          TEXT NOT NULL,
    seed              INTEGER NOT NULL,
    deadline_ms       INTEGER NOT NULL,
    tokens_max        INTEGER NOT NULL CHECK (tokens_max >= 0),
    calls_max         INTEGER NOT NULL CHECK (calls_max >= 0),
    processes_max     INTEGER NOT NULL CHECK (processes_max >= 0),
    memory_bytes_max  INTEGER NOT NULL CHECK (memory_bytes_max >= 0),
    is_ended          INTEGER NOT NULL DEFAULT 0 CHECK (is_ended IN (0, 1)),
    ended_ms          INTEGER NOT NULL DEFAULT 0,
    outcome           TEXT NOT NULL DEFAULT '',
    best              INTEGER REFERENCES agent (number) ON DELETE SET NULL,
    is_merged         INTEGER NOT NULL DEFAULT 0 CHECK (is_merged IN (0, 1)),
    commit_after      TEXT NOT NULL DEFAULT '',
    why               TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX swarm_by_root ON swarm (root);
CREATE INDEX swarm_by_best ON swarm (best) WHERE best IS NOT NULL;
CREATE INDEX swarm_open ON swarm (is_ended) WHERE is_ended = 0;

-- What an agent is in a swarm, and what became of it.
CREATE TABLE node (
    agent             INTEGER PRIMARY KEY REFERENCES agent (number) ON DELETE CASCADE,
    swarm             INTEGER NOT NULL REFERENCES swarm (number) ON DELETE CASCADE,
    kind              TEXT NOT NULL,
    brief             BLOB NOT NULL,
    workspace         TEXT NOT NULL,
    commit_before     TEXT NOT NULL,
    effort            INTEGER NOT NULL,
    deadline_ms       INTEGER NOT NULL,
    tokens_max        INTEGER NOT NULL CHECK (tokens_max >= 0),
    calls_max         INTEGER NOT NULL CHECK (calls_max >= 0),
    processes_max     INTEGER NOT NULL CHECK (processes_max >= 0),
    memory_bytes_max  INTEGER NOT NULL CHECK (memory_bytes_max >= 0),
    is_ended          INTEGER NOT NULL DEFAULT 0 CHECK (is_ended IN (0, 1)),
    ended_ms          INTEGER NOT NULL DEFAULT 0,
    ending            TEXT NOT NULL DEFAULT '',
    cut               TEXT NOT NULL DEFAULT '',
    summary           BLOB NOT NULL DEFAULT x'',
    detail            BLOB NOT NULL DEFAULT x'',
    commit_after      TEXT NOT NULL DEFAULT '',
    changed_lines     INTEGER NOT NULL DEFAULT 0 CHECK (changed_lines >= 0),
    turns             INTEGER NOT NULL DEFAULT 0 CHECK (turns >= 0),
    tokens            INTEGER NOT NULL DEFAULT 0 CHECK (tokens >= 0),
    calls             INTEGER NOT NULL DEFAULT 0 CHECK (calls >= 0),
    outcome           TEXT NOT NULL DEFAULT '',
    verdict           TEXT NOT NULL DEFAULT '',
    score             REAL,
    merged_into       INTEGER REFERENCES agent (number) ON DELETE SET NULL,
    merge_commit      TEXT NOT NULL DEFAULT '',
    conflicts         TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX node_by_swarm ON node (swarm);
CREATE INDEX node_by_merge ON node (merged_into) WHERE merged_into IS NOT NULL;
CREATE INDEX node_open ON node (is_ended) WHERE is_ended = 0;

-- Mail between agents of a session, in the order of its numbers. state: 0 waits, 1 delivered (turn and
-- message are the receiver's, which hold it), 2 bounced (turn and message are the sender's, which say so).
CREATE TABLE mail (
    number            INTEGER PRIMARY KEY,
    sender            INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,
    receiver          INTEGER NOT NULL REFERENCES agent (number) ON DELETE CASCADE,
    sent_ms           INTEGER NOT NULL,
    text              BLOB NOT NULL CHECK (length(text) > 0),
    state             INTEGER NOT NULL DEFAULT 0 CHECK (state BETWEEN 0 AND 2),
    settled_ms        INTEGER NOT NULL DEFAULT 0,
    turn              INTEGER REFERENCES turn (number) ON DELETE CASCADE,
    message           INTEGER REFERENCES message (number) ON DELETE CASCADE,
    CHECK ((turn IS NULL) = (message IS NULL)),
    CHECK (state <> 0 OR turn IS NULL),
    CHECK (state <> 1 OR turn IS NOT NULL)
) STRICT;
CREATE INDEX mail_by_sender ON mail (sender);
CREATE INDEX mail_by_receiver ON mail (receiver);
CREATE INDEX mail_by_turn ON mail (turn) WHERE turn IS NOT NULL;
CREATE INDEX mail_by_message ON mail (message) WHERE message IS NOT NULL;
CREATE INDEX mail_waiting ON mail (receiver) WHERE state = 0;
