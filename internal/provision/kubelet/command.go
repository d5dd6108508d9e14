package kubelet

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/coreos/go-systemd/v22/unit"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// processSource is how the source of a command that runs begins.
const processSource = "process "

// running finds the kubelet's process on this machine, outside of containers.
func running(host provision.Host) (command, error) {
	files := host.Files()
	if !host.Live() {
		return command{}, nil
	}
	names, err := files.ReadDir("/proc")
	if err != nil {
		return command{}, errs.IgnoreNotFound(err)
	}
	for _, pid := range names {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		data, err := read(files, "/proc/"+pid+"/cmdline")
		if err != nil {
			continue // it has ended
		}
		args := strings.Split(strings.TrimRight(string(data), "\x00"), "\x00")
		if path.Base(args[0]) == "kubelet" && pidNamespace(files, pid) == pidNamespace(files, "1") {
			c := command{source: processSource + pid, args: args[1:]}
			// Its unit says where its options can be changed.
			if u, err := ofUnit(files); err == nil {
				c.files = u.files
			}
			return c, nil
		}
	}
	return command{}, nil
}

func pidNamespace(files provision.Files, pid string) string {
	info, err := files.Stat("/proc/" + pid + "/ns/pid")
	if err != nil {
		return ""
	}
	return info.Target
}

// unitDirs are where systemd looks for units; the first wins.
func unitDirs() []string {
	return []string{"/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"}
}

// ofUnit is the command that the kubelet's unit starts, with its drop-ins and environment.
func ofUnit(files provision.Files) (command, error) {
	list, err := unitFiles(files)
	if err != nil || len(list) == 0 {
		return command{}, err
	}
	c := command{files: list}
	env := map[string]string{}
	start := ""
	for _, file := range list {
		data, err := read(files, file)
		if err != nil {
			return command{}, fmt.Errorf("cannot read %s: %w", file, err)
		}
		sections, err := unit.DeserializeSections(bytes.NewReader(data))
		if err != nil {
			return command{}, fmt.Errorf("cannot read %s: %w: %w", file, errs.Invalid, err)
		}
		for _, s := range sections {
			if s.Section != "Service" {
				continue
			}
			for _, entry := range s.Entries {
				switch entry.Name {
				case "ExecStart":
					start = entry.Value
				case "Environment":
					for _, word := range words(entry.Value) {
						name, value, _ := strings.Cut(word, "=")
						env[name] = value
					}
				case "EnvironmentFile":
					from := strings.TrimPrefix(entry.Value, "-")
					more, err := environmentFile(files, from)
					if errs.IgnoreNotFound(err) != nil {
						return command{}, err
					}
					if err == nil {
						maps.Copy(env, more)
						c.files = append(c.files, from)
					}
				}
			}
		}
	}
	args := expand(strings.TrimLeft(start, "-@:+!"), env)
	if len(args) == 0 {
		return command{}, nil
	}
	c.source, c.program, c.args = Unit, args[0], args[1:]
	return c, nil
}

// unitFiles lists the unit's file and its drop-ins, in the order in which they are read.
func unitFiles(files provision.Files) ([]string, error) {
	var list []string
	dropIns := map[string]string{}
	for _, dir := range unitDirs() {
		if at := path.Join(dir, Unit); len(list) == 0 {
			info, err := files.Stat(at)
			if errs.IgnoreNotFound(err) != nil {
				return nil, err
			}
			if err == nil && info.Target != "/dev/null" {
				list = append(list, at)
			}
		}
		names, err := files.ReadDir(path.Join(dir, Unit+".d"))
		if errs.IgnoreNotFound(err) != nil {
			return nil, err
		}
		for _, name := range names {
			if _, taken := dropIns[name]; !taken && path.Ext(name) == ".conf" {
				dropIns[name] = path.Join(dir, Unit+".d", name)
			}
		}
	}
	if len(list) == 0 {
		return nil, nil
	}
	for _, name := range slices.Sorted(maps.Keys(dropIns)) {
		list = append(list, dropIns[name])
	}
	return list, nil
}

// environmentFile reads NAME=value lines.
func environmentFile(files provision.Files, at string) (map[string]string, error) {
	data, err := read(files, at)
	if err != nil {
		return nil, err
	}
	env := map[string]string{}
	for line := range strings.Lines(string(data)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if ok && !strings.HasPrefix(name, "#") && !strings.HasPrefix(name, ";") {
			env[name] = strings.Trim(value, `"'`)
		}
	}
	return env, nil
}

// expand makes arguments of a command line as systemd does: $NAME alone becomes as many
// words as it has, ${NAME} stays one.
func expand(line string, env map[string]string) []string {
	var args []string
	for _, word := range words(line) {
		if name, ok := strings.CutPrefix(word, "$"); ok && !strings.HasPrefix(name, "{") {
			args = append(args, words(env[name])...)
			continue
		}
		args = append(args, os.Expand(word, func(name string) string { return env[name] }))
	}
	return args
}

// words splits at spaces that are not in quotes.
func words(line string) []string {
	var list []string
	var word strings.Builder
	begun := false
	var quote rune
	for _, c := range line {
		switch {
		case c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, begun = c, true
		case quote == 0 && (c == ' ' || c == '\t' || c == '\n'):
			if begun {
				list = append(list, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteRune(c)
			begun = true
		}
	}
	if begun {
		list = append(list, word.String())
	}
	return list
}

// readLimit bounds what is read of one file.
const readLimit = 1 << 20

func read(files provision.Files, at string) ([]byte, error) {
	r, err := files.Open(at)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, readLimit))
	return data, errors.Join(err, r.Close())
}
