/* What the host, hearth-sandbox and hearth-inner agree on: descriptor numbers and the lines of the
 * status pipe. Plain macros, since hearth-inner links nothing of ours.
 *
 * The command never holds a status descriptor (close-on-exec in hearth-inner), so nothing it
 * prints can be taken for a status line.
 */
#ifndef HEARTH_SANDBOX_LAUNCH_SPEC_H
#define HEARTH_SANDBOX_LAUNCH_SPEC_H

#define LAUNCH_ARGUMENTS_FD 3 /* sealed memfd with bubblewrap's arguments, NUL separated */
#define LAUNCH_STATUS_FD    4 /* bubblewrap's JSON lines; it closes this one inside */
#define LAUNCH_RECORD_FD    5 /* the same pipe, inherited by hearth-inner */
#define LAUNCH_FILTER_FD    6 /* sealed memfd with the compiled seccomp filter */
/* Behind them workspace, .git, protected paths, small files and cgroup.procs. */
#define LAUNCH_NETWORK_FD  7 /* connected to the host's proxy; with network only */
#define LAUNCH_PROXY_PORT  3128
#define LAUNCH_FDS_MAX     128
#define LAUNCH_OUTSIDE_MAX 24 /* further read-only paths of the host */

#define LAUNCH_LINE_READY  "hearth ready"   /* hearth-inner is about to run the command */
#define LAUNCH_LINE_FAILED "hearth failed " /* and a reason */

#define LAUNCH_STATUS_FAILED 125

#define LAUNCH_WORKSPACE "/workspace"
#define LAUNCH_HOME      "/home/agent"
#define LAUNCH_INNER     "/.inner"

#endif
