package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/apk"
	_ "github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

const (
	homepage    = "https://github.com/berthrun/berth"
	maintainer  = "The berth authors <berth@berth.run>"
	summary     = "Container runtime for the kubelet, without a process per pod"
	description = summary + "\n" +
		"berth serves CRI v1 for the kubelet. One supervisor owns the output, logs and\n" +
		"exit codes of all containers. berth node makes a machine a node, and berth\n" +
		"cluster runs Kubernetes clusters on one machine."
)

// build makes all packages and the archive of one architecture.
func build(o options) error {
	if o.arch != "amd64" && o.arch != "arm64" {
		return fmt.Errorf("-arch %q is unknown; want amd64 or arm64", o.arch)
	}
	stage, err := os.MkdirTemp("", "berth-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(stage)
	if err := stageFiles(o, stage); err != nil {
		return err
	}
	parts, err := readParts(o)
	if err != nil {
		return err
	}
	if err := writeLicenses(parts, stage); err != nil {
		return err
	}
	bill := filepath.Join(stage, "sbom.spdx.json")
	if err := writeBill(o, parts, bill); err != nil {
		return err
	}
	list, err := contents(o, stage)
	if err != nil {
		return err
	}
	for _, format := range []string{deb, rpm, apk} {
		if err := writePackage(o, stage, format, of(list, format)); err != nil {
			return fmt.Errorf("%s for %s: %w", format, o.arch, err)
		}
	}
	text, err := os.ReadFile(bill)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.out, o.archiveName()+".spdx.json"), text, 0o644); err != nil {
		return err
	}
	return writeArchive(o, of(list, ""))
}

// writePackage writes a package by the name that its format has for it.
func writePackage(o options, stage, format string, list []file) error {
	info, err := describe(o, stage, format, list)
	if err != nil {
		return err
	}
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	out, err := os.Create(filepath.Join(o.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	return errors.Join(packager.Package(info, out), out.Close())
}

// describe is a package for nfpm.
func describe(o options, stage, format string, list []file) (*nfpm.Info, error) {
	info := &nfpm.Info{
		Name: "berth", Arch: o.arch, Platform: "linux", Version: o.version.tilde(), VersionSchema: "none",
		Section: "admin", Priority: "optional", Maintainer: maintainer, Vendor: "berth", Homepage: homepage,
		License: "Apache-2.0", Description: description, MTime: o.date, DisableGlobbing: true,
	}
	info.Umask = 0o022
	info.Deb.Compression = "gzip" // dpkg of Debian 11 reads neither zstd nor anything newer
	info.RPM.Compression, info.RPM.BuildHost, info.RPM.Summary, info.RPM.Group = "gzip:6", "localhost", summary, "System Environment/Daemons"
	switch format {
	case apk:
		info.Version, info.Release = o.version.apk(), "r0"
	default:
		info.Recommends = []string{"kmod"}
		info.Release = "1"
	}
	for _, f := range list {
		info.Contents = append(info.Contents, content(o, f))
	}
	for _, s := range []struct {
		format, name, text string
		to                 *string
	}{
		{deb, "postinst", debPostinst, &info.Scripts.PostInstall},
		{deb, "prerm", debPrerm, &info.Scripts.PreRemove},
		{deb, "postrm", debPostrm, &info.Scripts.PostRemove},
		{rpm, "post", rpmPost, &info.Scripts.PostInstall},
		{rpm, "preun", rpmPreun, &info.Scripts.PreRemove},
		{rpm, "postun", rpmPostun, &info.Scripts.PostRemove},
		{apk, "post-install", apkPostInstall, &info.Scripts.PostInstall},
		{apk, "post-upgrade", apkPostUpgrade, &info.APK.Scripts.PostUpgrade},
		{apk, "pre-deinstall", apkPreRemove, &info.Scripts.PreRemove},
	} {
		if s.format != format {
			continue
		}
		path, err := script(o, stage, format+"-"+s.name, s.text)
		if err != nil {
			return nil, err
		}
		*s.to = path
	}
	return info, nil
}

func content(o options, f file) *files.Content {
	c := &files.Content{
		Source: f.from, Destination: f.to,
		FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: f.mode, MTime: o.date},
	}
	switch f.kind {
	case config:
		c.Type = files.TypeConfigNoReplace
	case link:
		c.Type = files.TypeSymlink
	}
	return c
}
