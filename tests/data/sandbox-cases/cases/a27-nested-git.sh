# CASE: a27-nested-git
# GROUP: A fs
# EXPECT: core.fsmonitor planted in a repository or submodule below the top does not run on host git status
setup(){
cd "$WS"; git init -q .; mkdir -p lib/in sub .git/modules; git init -q lib/in; git init -q --separate-git-dir .git/modules/sub sub
}
payload(){ cat <<'P'
plant(){ printf "[core]\n\tfsmonitor = \"touch $OUTSIDE/nested; false\"\n" >>"$1"; }
plant lib/in/.git/config; mkdir evil; git init -q evil; plant evil/.git/config; echo ../../../evil/.git >lib/in/.git/commondir
for d in sub lib/in; do mv $d/.git $d/git; rm -rf $d/.git; cp -r evil/.git $d/.git; echo "gitdir: $PWD/evil/.git" >$d/.git; done
mv lib old; mv sub older; mkdir -p lib/in sub; cp -r evil/.git lib/in/; cp -r evil/.git sub/
P
}
check(){
for d in sub lib/in; do git -c safe.directory="*" -C "$WS/$d" status >/dev/null 2>&1; done; [ -e "$OUTSIDE/nested" ] && echo "BREACH core.fsmonitor command ran on the host" || echo SAFE
}
