package main

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// kind is how a file of a package is treated.
type kind int

const (
	regular kind = iota
	// config is a file that administrators change: an upgrade keeps it.
	config
	// link is a symbolic link; from is its target.
	link
)

// file is one file of the packages.
type file struct {
	from, to string
	mode     fs.FileMode
	kind     kind
	// only are the formats that have it; none for all, with the archive.
	only []string
}

// The formats of packages, as nfpm calls them.
const (
	deb = "deb"
	rpm = "rpm"
	apk = "apk"
)

const (
	bindir    = "/usr/bin"
	unitdir   = "/usr/lib/systemd/system"
	pluginDir = "/usr/lib/berth/cni"
	docdir    = "/usr/share/doc/berth"
)

// units are the services, whose texts `make install` uses, too.
var units = []string{"berth.service", "berth-supervisor.service", "berth-cluster.service"}

// contents lists the files of the packages in the order of their paths. Generated ones are in stage.
func contents(o options, stage string) ([]file, error) {
	list := []file{
		{from: filepath.Join(o.bin, "berth"), to: bindir + "/berth", mode: 0o755},
		{from: filepath.Join(o.bin, "berth-supervisor"), to: bindir + "/berth-supervisor", mode: 0o755},
		{from: filepath.Join(o.bin, "berth-cni"), to: pluginDir + "/berth-cni", mode: 0o755},
		{from: filepath.Join(o.docs, defaultsOfUnit), to: "/etc/berth/berth.toml", mode: 0o644, kind: config},
		{from: filepath.Join(o.source, "build/crictl.yaml"), to: docdir + "/examples/crictl.yaml", mode: 0o644},
		{from: filepath.Join(o.source, "examples/hello-pod.yaml"), to: docdir + "/examples/hello-pod.yaml", mode: 0o644},
		{from: filepath.Join(o.source, "examples/metrics/alerts.yaml"), to: docdir + "/examples/metrics/alerts.yaml", mode: 0o644},
		{from: filepath.Join(o.source, "examples/metrics/dashboard.json"), to: docdir + "/examples/metrics/dashboard.json", mode: 0o644},
		{from: filepath.Join(o.source, "LICENSE"), to: docdir + "/LICENSE", mode: 0o644},
		{from: filepath.Join(stage, "copyright"), to: docdir + "/copyright", mode: 0o644},
		{from: filepath.Join(stage, "third-party-licenses.gz"), to: docdir + "/third-party-licenses.gz", mode: 0o644},
		{from: filepath.Join(stage, "sbom.spdx.json"), to: docdir + "/sbom.spdx.json", mode: 0o644},
		{from: filepath.Join(o.docs, completionDir, "berth"), to: "/usr/share/bash-completion/completions/berth", mode: 0o644},
		{from: filepath.Join(o.docs, completionDir, "berth.fish"), to: "/usr/share/fish/vendor_completions.d/berth.fish", mode: 0o644},
		{from: filepath.Join(o.docs, completionDir, "_berth"), to: "/usr/share/zsh/vendor-completions/_berth", mode: 0o644, only: []string{deb}},
		{from: filepath.Join(o.docs, completionDir, "_berth"), to: "/usr/share/zsh/site-functions/_berth", mode: 0o644, only: []string{rpm, apk, ""}},
	}
	for _, plugin := range o.plugins {
		list = append(list, file{from: "berth-cni", to: path.Join(pluginDir, plugin), kind: link})
	}
	for _, unit := range units {
		list = append(list, file{from: filepath.Join(stage, unit), to: path.Join(unitdir, unit), mode: 0o644, only: []string{deb, rpm, ""}})
	}
	for _, service := range []string{"berth", "berth-supervisor"} {
		list = append(list, file{from: filepath.Join(stage, "openrc-"+service), to: "/etc/init.d/" + service, mode: 0o755, only: []string{apk}})
	}
	pages, err := os.ReadDir(filepath.Join(o.docs, manDir))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		section := strings.TrimPrefix(path.Ext(strings.TrimSuffix(page.Name(), ".gz")), ".")
		list = append(list, file{from: filepath.Join(o.docs, manDir, page.Name()), to: "/usr/share/man/man" + section + "/" + page.Name(), mode: 0o644})
	}
	slices.SortFunc(list, func(a, b file) int { return strings.Compare(a.to, b.to) })
	return list, nil
}

// of lists the files of a format; "" is the archive.
func of(list []file, format string) []file {
	return slices.DeleteFunc(slices.Clone(list), func(f file) bool { return len(f.only) > 0 && !slices.Contains(f.only, format) })
}

// stageFiles writes the generated files of an architecture, except what the parts of the binaries
// decide.
func stageFiles(o options, stage string) error {
	texts := map[string]string{}
	for _, unit := range units {
		texts[filepath.Join(o.source, "build", unit)] = unit
	}
	for _, service := range []string{"berth", "berth-supervisor"} {
		texts[filepath.Join(o.source, "build/packages/openrc", service)] = "openrc-" + service
	}
	for from, to := range texts {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if !strings.Contains(string(text), "@BINDIR@") {
			return fmt.Errorf("%s does not name @BINDIR@, the directory of the binaries", from)
		}
		text = []byte(strings.ReplaceAll(string(text), "@BINDIR@", bindir))
		if err := os.WriteFile(filepath.Join(stage, to), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
