package crash

import (
	"fmt"
	"strconv"
	"strings"
)

// The lengths of the lines that containers write: most are short, some longer than a pipe's atomic
// write, some longer than a log's longest part.
const (
	padding    = "abcdefghijklmnopqrstuvwxyz0123456789"
	shortest   = 180
	longEvery  = 101
	longBytes  = 250 * len(padding)
	hugeEvery  = 997
	hugeBytes  = 1250 * len(padding)
	multiplier = 7919
)

// writer is the program of a container. It writes bursts of numbered lines until the trigger file
// appears or the stop signal comes, then the last lines and the exit code. A writer that will exit
// while nobody reads gets quiet before, and writes into its file in /settled how many lines it has
// written: a pipe holds 64 KiB of last lines, a terminal next to nothing. The writer starts no
// process on the way, so that it is fast.
const writer = `
name=$1 burst=$2 tty=$3 stop=$4
[ -n "$stop" ] && trap 'code=$stop' TERM || trap '' TERM
code=
mkfifo /tmp/pause && exec 3<>/tmp/pause
pad=%[1]s
short=$pad; while [ ${#short} -lt %[2]d ]; do short=$short$pad; done
long=; i=0; while [ $i -lt 250 ]; do long=$long$pad; i=$((i+1)); done
huge=$long$long$long$long$long
i=0 b=0
burst() {
	n=0
	while [ $n -lt $1 ]; do
		if [ $((i %% %[4]d)) = 500 ]; then echo "$i $huge"
		elif [ $((i %% %[3]d)) = 50 ]; then echo "$i $long"
		else echo "$i ${short:0:$((i * %[5]d %% %[2]d))}"; fi
		i=$((i+1)) n=$((n+1))
	done
	if [ -z "$tty" ]; then echo "$b burst" >&2; b=$((b+1)); fi
}
while [ -z "$code" ]; do
	if [ -e /triggers/$name ]; then [ -n "$tty" ] || burst 10; read code < /triggers/$name
	else
		if [ ! -e /triggers/$name.quiet ]; then burst $burst
		elif [ ! -e /settled/$name ]; then echo "$i" > /settled/$name; fi
		read -t 0.03 _ <&3
	fi
done
echo "end $i"
[ -n "$tty" ] || echo "end $b" >&2
exit $code
`

func script() string {
	return fmt.Sprintf(writer, padding, shortest, longEvery, hugeEvery, multiplier)
}

// stdoutLine and stderrLine are the lines with number i.
func stdoutLine(i int) string {
	var length int
	switch {
	case i%hugeEvery == 500:
		length = hugeBytes
	case i%longEvery == 50:
		length = longBytes
	default:
		length = i * multiplier % shortest
	}
	return strconv.Itoa(i) + " " + strings.Repeat(padding, length/len(padding)+1)[:length]
}

func stderrLine(i int) string { return strconv.Itoa(i) + " burst" }
