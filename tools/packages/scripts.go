package main

import (
	"os"
	"path/filepath"
)

// Each script of a package is services.sh with a few lines that read the package manager's
// arguments.
const (
	debPostinst = `case $1 in
  configure) if [ -n "${2:-}" ]; then berth_upgraded; else berth_installed; fi ;;
  abort-upgrade | abort-remove | abort-deconfigure) ;;
esac
`
	debPrerm = `case $1 in
  remove) berth_removing ;;
esac
`
	debPostrm = `case $1 in
  remove) berth_removed ;;
  purge) berth_purge ;;
esac
`
	// The argument is how many versions of the package remain.
	rpmPost  = `if [ "$1" -gt 1 ]; then berth_upgraded; else berth_installed; fi` + "\n"
	rpmPreun = `if [ "$1" -eq 0 ]; then berth_removing; fi` + "\n"
	// After an upgrade the old version's script runs last.
	rpmPostun = `if [ "$1" -eq 0 ]; then berth_removed; fi` + "\n"

	apkPostInstall = "berth_installed\n"
	apkPostUpgrade = "berth_upgraded\n"
	apkPreRemove   = "berth_removing\n"
)

// script writes one script and returns its path. A format is in the name since each has its own.
func script(o options, stage, name, text string) (string, error) {
	services, err := os.ReadFile(filepath.Join(o.source, "build/packages/services.sh"))
	if err != nil {
		return "", err
	}
	path := filepath.Join(stage, name)
	content := "#!/bin/sh\nset -e\n" + string(services) + text + "exit 0\n"
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		return "", err
	}
	return path, os.Chtimes(path, o.date, o.date)
}
