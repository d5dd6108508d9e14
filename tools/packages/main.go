// Command packages makes what a release of berth consists of: packages for Debian, RPM
// distributions and Alpine, an archive with an install script, a list of parts (SPDX), and checksums.
// The same binaries and the same date give the same bytes.
//
//	packages docs -berth PROGRAM -source DIR -out DIR -version V -epoch N
//	packages build -arch ARCH -bin DIR -docs DIR -plugins NAMES -source DIR -out DIR -version V -epoch N
//	packages checksums -out DIR
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "packages: %v\n", err)
		os.Exit(1)
	}
}

// options are the flags of all verbs.
type options struct {
	arch, bin, docs, berth, source, out string
	// plugins are the names by which berth-cni is called.
	plugins []string
	version version
	// date is that of every file and of the packages: the commit's.
	date time.Time
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: packages docs|build|checksums; see the package comment")
	}
	o, err := parse(args[0], args[1:])
	if err != nil {
		return err
	}
	switch args[0] {
	case "docs":
		return writeDocs(o)
	case "build":
		return build(o)
	case "checksums":
		return checksums(o.out, hooks{sign: os.Getenv("SIGN_COMMAND"), signPackage: os.Getenv("SIGN_PACKAGE_COMMAND")})
	}
	return fmt.Errorf("unknown verb %q; want docs, build or checksums", args[0])
}

func parse(verb string, args []string) (options, error) {
	var o options
	var text, plugins string
	var epoch int64
	flags := flag.NewFlagSet(verb, flag.ContinueOnError)
	flags.StringVar(&o.arch, "arch", "", "architecture of the binaries: amd64 or arm64")
	flags.StringVar(&o.bin, "bin", "", "directory of the binaries")
	flags.StringVar(&o.docs, "docs", "", "directory that the verb docs has written")
	flags.StringVar(&o.berth, "berth", "", "a berth that runs on this machine, for its commands and defaults")
	flags.StringVar(&o.source, "source", "", "root of the repository")
	flags.StringVar(&o.out, "out", "", "directory to write to")
	flags.StringVar(&plugins, "plugins", "", "CNI plugins that berth-cni has, separated by spaces")
	flags.StringVar(&text, "version", "", "version, such as 1.2.3 or 1.2.4-dev.5")
	flags.Int64Var(&epoch, "epoch", 0, "date of the release, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.out == "" {
		return o, errors.New("-out is missing")
	}
	if verb == "checksums" {
		return o, nil
	}
	if o.source == "" || epoch <= 0 {
		return o, errors.New("-source and -epoch are needed")
	}
	o.plugins = strings.Fields(plugins)
	o.date = time.Unix(epoch, 0).UTC()
	var err error
	o.version, err = parseVersion(text)
	return o, err
}
