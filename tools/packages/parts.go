package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// parts are what the binaries of one architecture consist of.
type parts struct {
	binaries []binary
	// modules are those of all binaries, sorted by path.
	modules []module
	// libraries are the static C libraries in the supervisor.
	libraries []library
	// goVersion is the toolchain's, such as go1.26.1, whose standard library is in each binary.
	goVersion string
	// goroot and cache are the directories with the licenses of Go and of the modules.
	goroot, cache string
}

// binary is one program.
type binary struct {
	name, sha256 string
	modules      []module
	// static is true for a program with the C libraries in it.
	static bool
}

// module is a Go module as the linker has recorded it.
type module struct{ path, version, sum string }

// library is a C library as a package of Debian. Its version is "" where there is no dpkg.
type library struct{ name, debian, version, license string }

// programs are the binaries; the supervisor is linked with C.
var programs = []binary{{name: "berth"}, {name: "berth-cni"}, {name: "berth-supervisor", static: true}}

func readParts(o options) (parts, error) {
	var p parts
	all := map[module]bool{}
	for _, b := range programs {
		path := filepath.Join(o.bin, b.name)
		info, err := buildinfo.ReadFile(path)
		if err != nil {
			return p, fmt.Errorf("cannot read what %s consists of: %w", path, err)
		}
		for _, s := range info.Settings {
			if s.Key == "GOARCH" && s.Value != o.arch {
				return p, fmt.Errorf("%s is for %s, want %s", path, s.Value, o.arch)
			}
		}
		p.goVersion = info.GoVersion
		for _, dep := range info.Deps {
			if dep.Replace != nil {
				dep = dep.Replace
			}
			m := module{dep.Path, dep.Version, dep.Sum}
			b.modules, all[m] = append(b.modules, m), true
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return p, err
		}
		sum := sha256.Sum256(data)
		b.sha256 = hex.EncodeToString(sum[:])
		p.binaries = append(p.binaries, b)
	}
	for m := range all {
		p.modules = append(p.modules, m)
	}
	slices.SortFunc(p.modules, func(a, b module) int {
		return cmp.Or(strings.Compare(a.path, b.path), strings.Compare(a.version, b.version))
	})
	p.libraries = libraries(o.arch)
	var err error
	if p.goroot, err = goEnv("GOROOT"); err != nil {
		return p, err
	}
	p.cache, err = goEnv("GOMODCACHE")
	return p, err
}

func goEnv(name string) (string, error) {
	out, err := exec.Command("go", "env", name).Output()
	if err != nil {
		return "", fmt.Errorf("go env %s: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// libraries finds the versions of the C libraries among the installed packages: of this machine's
// architecture, or of a cross compiler.
func libraries(arch string) []library {
	return []library{
		installed(library{name: "libseccomp", license: "LGPL-2.1-only"}, "libseccomp-dev:"+arch),
		installed(library{name: "glibc", license: "LGPL-2.1-or-later"}, "libc6-dev:"+arch, "libc6-dev-"+arch+"-cross"),
	}
}

func installed(l library, packages ...string) library {
	for _, name := range packages {
		out, err := exec.Command("dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", name).Output()
		if version, ok := strings.CutPrefix(string(out), "installed "); err == nil && ok {
			l.debian, l.version = strings.TrimSuffix(name, ":"+arch(name)), version
			return l
		}
	}
	return l
}

// arch is the part of a package's name behind the colon.
func arch(name string) string {
	_, arch, _ := strings.Cut(name, ":")
	return arch
}
