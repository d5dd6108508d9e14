#!/bin/bash
# A pod from nothing: starts a berth of its own, imports the image that the build
# made, runs examples/hello-pod.yaml, shows it from all sides, removes everything
# and looks whether anything is left. Ctrl-C at any point removes everything too.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "demo: berth makes namespaces and mounts: run as root" >&2; exit 1; }

dir=$(mktemp -d /tmp/berth-demo-XXXXXX)
export BERTH_ENDPOINT=unix://$dir/berth.sock
berth=$PWD/bin/berth
# Whatever a berth makes on the host carries its instance's name: a hash of where its state is.
instance=$(printf %s "$dir/state" | sha256sum | cut -c1-8)
daemon= keeper=
bold=$(tput bold 2>/dev/null || true) plain=$(tput sgr0 2>/dev/null || true)

step() { printf '\n%s$ %s%s\n' "$bold" "$*" "$plain"; }
show() { step "${*/#$berth/berth}"; "$@"; }

# what on this host carries the demo's marks
leftovers() {
  grep " $dir" /proc/self/mountinfo | awk '{print "mount", $5}' || true
  pgrep -af "$dir" | awk -v self=$$ '$1 != self {print "process", $0}' || true
  find /run/netns -name "berth-$instance*" 2>/dev/null | sed 's/^/netns /' || true
  find /sys/fs/cgroup -type d -name "berth-$instance*" 2>/dev/null | sed 's/^/cgroup /' || true
  comm -13 "$dir/links.before" <(ip -o link | awk -F': ' '{print $2}' | sort) | sed 's/^/link /'
}

finish() {
  code=$?
  trap '' INT TERM
  [ -z "$keeper" ] || { kill -TERM "$keeper" 2>/dev/null && wait "$keeper" 2>/dev/null; } || true
  if [ -n "$daemon" ] && kill -0 "$daemon" 2>/dev/null; then
    "$berth" pod rm --force --all >/dev/null 2>&1 || true
    kill -TERM "$daemon" 2>/dev/null && wait "$daemon" 2>/dev/null || true
  fi
  for _ in $(seq 100); do
    left=$(leftovers)
    [ -n "$left" ] || break
    sleep 0.1
  done
  if [ -n "$left" ]; then
    printf '\ndemo: left behind:\n%s\n' "$left" >&2
    code=1
  elif [ $code = 0 ]; then
    printf '\n%sNothing is left: no mount, process, network namespace, cgroup or link.%s\n' "$bold" "$plain"
  fi
  [ $code = 0 ] || { echo "demo: failed; end of the daemon's log:" >&2; tail -n 20 "$dir/berth.log" >&2 2>/dev/null || true; }
  [ -n "$left" ] || rm -rf "$dir"
  exit $code
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

ip -o link | awk -F': ' '{print $2}' | sort > "$dir/links.before"

step "berth serve --network builtin"
# A group of its own: Ctrl-C is for the demo, which then stops the daemon in order.
setsid "$berth" serve --network builtin --listen "unix://$dir/berth.sock" --root "$dir/root" --state "$dir/state" > "$dir/berth.log" 2>&1 &
daemon=$!
for _ in $(seq 100); do
  "$berth" info > "$dir/info" 2>/dev/null && break
  kill -0 "$daemon" 2>/dev/null || exit 1
  sleep 0.1
done
step "berth info"
cat "$dir/info"

show "$berth" image import bin/hello-image.tar
show "$berth" image ls

step "berth pod run -f examples/hello-pod.yaml &"
setsid "$berth" pod run --log-dir "$dir/logs" --volume-dir "$dir/volumes" -f examples/hello-pod.yaml > "$dir/run.log" 2>&1 &
keeper=$!
for _ in $(seq 150); do
  curl -fsS -o /dev/null "http://127.0.0.1:18080/healthz" 2>/dev/null && break
  kill -0 "$keeper" 2>/dev/null || { cat "$dir/run.log" >&2; exit 1; }
  sleep 0.1
done

show "$berth" pod ls
address=$("$berth" pod inspect hello -o json | sed -n 's/.*"ip": *"\([^"]*\)".*/\1/p' | head -1)
show curl -fsS "http://$address:8080/"
show curl -fsS http://127.0.0.1:18080/
show "$berth" pod exec hello -c web -- sh -c 'echo "inside: $(hostname), pid $$"; id; ps'
for _ in $(seq 50); do
  "$berth" pod logs hello -c visitor | grep -q hello && break
  sleep 0.1
done
show "$berth" pod logs hello -c visitor
show "$berth" pod logs hello -c web --tail 3
show "$berth" pod stats hello

step "berth pod rm --force hello"
kill -TERM "$keeper"
wait "$keeper" || true
keeper=
"$berth" pod rm --force hello >/dev/null 2>&1 || true
show "$berth" pod ls
