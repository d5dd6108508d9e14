package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"mvdan.cc/sh/v3/interp"
	"mvdan.cc/sh/v3/syntax"
)

// shell runs `sh -c SCRIPT [NAME ARG...]`, `sh FILE [ARG...]`, or reads commands
// from its input, with a prompt when that is a terminal.
func shell(args []string) int {
	flags := flag.NewFlagSet("sh", flag.ContinueOnError)
	script := flags.String("c", "", "script to run")
	if flags.Parse(args[1:]) != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	rest := flags.Args()
	switch {
	case *script != "":
		if len(rest) > 0 {
			rest = rest[1:] // $0
		}
		return runScript(ctx, args, strings.NewReader(*script), rest)
	case len(rest) > 0:
		file, err := os.Open(rest[0])
		if err != nil {
			return fail(args, err)
		}
		defer file.Close()
		return runScript(ctx, args, file, rest[1:])
	default:
		return interact(ctx, args)
	}
}

func runScript(ctx context.Context, args []string, script io.Reader, params []string) int {
	program, err := syntax.NewParser(syntax.Variant(syntax.LangPOSIX)).Parse(script, "")
	if err != nil {
		return fail(args, err)
	}
	runner, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.Params(append([]string{"--"}, params...)...))
	if err != nil {
		return fail(args, err)
	}
	return exitCode(args, runner.Run(ctx, program))
}

func interact(ctx context.Context, args []string) int {
	runner, err := interp.New(interp.StdIO(os.Stdin, os.Stdout, os.Stderr), interp.Interactive(true))
	if err != nil {
		return fail(args, err)
	}
	prompt := func(string) {}
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		prompt = func(text string) { fmt.Print(text) }
	}
	prompt("$ ")
	var last error
	parser := syntax.NewParser(syntax.Variant(syntax.LangPOSIX))
	for statements, err := range parser.InteractiveSeq(os.Stdin) {
		if err != nil {
			return fail(args, err)
		}
		if parser.Incomplete() {
			prompt("> ")
			continue
		}
		for _, statement := range statements {
			last = runner.Run(ctx, statement)
			if runner.Exited() {
				return exitCode(args, last)
			}
		}
		prompt("$ ")
	}
	return exitCode(args, last)
}

func exitCode(args []string, err error) int {
	var status interp.ExitStatus
	switch {
	case err == nil:
		return 0
	case errors.As(err, &status):
		return int(status)
	default:
		return fail(args, err)
	}
}
