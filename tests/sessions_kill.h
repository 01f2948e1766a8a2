/* A process that is killed within a write of SQLite's, with half of it on the disk. */
#ifndef HEARTH_TESTS_SESSIONS_KILL_H
#define HEARTH_TESTS_SESSIONS_KILL_H

/* Within the nth write of this process from now on, by any thread; 0: within none. */
void sessions_kill_at(int nth);
int sessions_writes(void); /* since then */

#endif
