package docs

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"mvdan.cc/sh/v3/syntax"

	"github.com/berthrun/berth/internal/cli"
	"github.com/berthrun/berth/internal/cli/clustercmd"
	"github.com/berthrun/berth/internal/cli/crictl"
	"github.com/berthrun/berth/internal/cli/ctr"
)

// programs are the names that berth has, with what makes the command tree of each.
func programs() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{"berth": cli.Root, "kind": clustercmd.NewKind, "crictl": crictl.New, "ctr": ctr.New}
}

// checkScript parses a shell script, and each command line of berth in it. It returns how many
// there are. The error has every fault with its line, counted from the script's first one.
func checkScript(script string) (int, error) {
	file, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(script), "")
	if err != nil {
		return 0, err
	}
	var faults []error
	lines := 0
	syntax.Walk(file, func(node syntax.Node) bool {
		call, ok := node.(*syntax.CallExpr)
		if !ok {
			return true
		}
		words := make([]string, len(call.Args))
		for i, word := range call.Args {
			words[i] = literal(word)
		}
		if words = ofBerth(words); words == nil {
			return true
		}
		lines++
		if err := checkCommand(words, true); err != nil {
			faults = append(faults, fmt.Errorf("line %d: %s: %w", call.Pos().Line(), strings.Join(words, " "), err))
		}
		return true
	})
	return lines, errors.Join(faults...)
}

// literal is the value of a word; an expansion in it becomes an x.
func literal(word *syntax.Word) string {
	var text strings.Builder
	var add func(parts []syntax.WordPart)
	add = func(parts []syntax.WordPart) {
		for _, part := range parts {
			switch part := part.(type) {
			case *syntax.Lit:
				text.WriteString(strings.ReplaceAll(part.Value, "\\\n", ""))
			case *syntax.SglQuoted:
				text.WriteString(part.Value)
			case *syntax.DblQuoted:
				add(part.Parts)
			default:
				text.WriteByte('x')
			}
		}
	}
	add(word.Parts)
	return text.String()
}

// ofBerth returns the part of a command line that is a call of berth, under any of its names; nil
// if there is none. It looks through the programs that call another one.
func ofBerth(words []string) []string {
	for len(words) > 0 {
		name := path.Base(words[0])
		if programs()[name] != nil {
			// berth is also a unit of systemd and a directory; a call begins the line.
			return append([]string{name}, words[1:]...)
		}
		switch name {
		case "sudo", "xargs", "env", "exec", "nsenter", "time", "timeout", "watch":
			words = afterFlags(words[1:])
		case "docker", "podman", "nerdctl":
			if len(words) < 2 || words[1] != "exec" {
				return nil
			}
			if words = afterFlags(words[2:]); len(words) > 0 {
				words = words[1:]
			}
		default:
			return nil
		}
	}
	return nil
}

// afterFlags leaves out flags, and what has the form of a variable or a number.
func afterFlags(words []string) []string {
	return words[slices.IndexFunc(append(slices.Clone(words), "end"), func(word string) bool {
		return !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") && strings.Trim(word, "0123456789smh") != ""
	}):]
}

// withValues leaves out a flag at the end that has no value: prose names flags alone.
func withValues(cmd *cobra.Command, words []string) []string {
	if len(words) == 0 {
		return words
	}
	last, dashed := strings.CutPrefix(words[len(words)-1], "--")
	if flag := cmd.Flag(last); dashed && flag != nil && flag.NoOptDefVal == "" {
		return words[:len(words)-1]
	}
	return words
}

// checkCommand compares a command line with the command tree. With complete, its number of
// arguments and its required flags count, too.
func checkCommand(words []string, complete bool) error {
	root := programs()[words[0]]()
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	find := root.Find
	if root.TraverseChildren {
		find = root.Traverse
	}
	cmd, rest, err := find(words[1:])
	if err != nil {
		return err
	}
	if cmd.DisableFlagParsing {
		return nil
	}
	cmd.InitDefaultHelpFlag()
	cmd.InitDefaultVersionFlag()
	if !complete {
		rest = withValues(cmd, rest)
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil
	}
	args := cmd.Flags().Args()
	if cmd.HasAvailableSubCommands() && len(args) > 0 && cmd.Args == nil {
		return fmt.Errorf("%s has no command %q", cmd.CommandPath(), args[0])
	}
	if !complete {
		return nil
	}
	if err := cmd.ValidateArgs(args); err != nil {
		return err
	}
	return cmd.ValidateRequiredFlags()
}
