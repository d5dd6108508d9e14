package imagecmd

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthrun/berth/internal/berthapi"
	"github.com/berthrun/berth/internal/cli/exitcode"
	"github.com/berthrun/berth/internal/cli/show"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/image"
)

func (c *commands) newExplain() *cobra.Command {
	var output show.Flag
	var user, namespace, handler string
	var passwordStdin, try bool
	cmd := &cobra.Command{
		Use:   "explain IMAGE",
		Short: "Show where a pull looks for an image, whether it may be used, and why",
		Long: "explain lists the endpoints that a pull of the image asks, in their order: the mirrors of hosts.toml, then the\n" +
			"registry. For a name without a registry, it lists the full names that image.search_registries makes of it, in the\n" +
			"order in which a pull tries them, and says which of them the node has. It shows which file names each endpoint,\n" +
			"whose credentials it gets, and how it failed lately. On a node with image.policy it shows the scope of the policy\n" +
			"that holds for the image, and what that requires; with image.verifier_dir the programs that are asked. --namespace\n" +
			"shows the policy of image.policy_dir for the pods of a namespace, --handler the platform of a runtime handler. explain sends nothing without --try, and shows no\n" +
			"secret. With --try it decides about the image as a pull does, from its manifest and signatures, and lists the\n" +
			"artifacts that refer to the image, such as signatures and bills of materials. Of several full names, a pull tries\n" +
			"the next one only if the registry lacks the image, refuses the client or cannot be reached. --try stops at the same\n" +
			"name as a pull. The exit code of --try is 1 if no endpoint has the image, or if it may not be used. Only berth\n" +
			"supports this.",
		Example: "  berth image explain busybox\n  berth image explain --try --namespace team-a registry.example/team/app:v1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			auth, err := credentials(cmd.InOrStdin(), user, passwordStdin)
			if err != nil {
				return err
			}
			return c.endpoint.Use(cmd, func(ctx context.Context, conn *criclient.Conn) error {
				explained, err := conn.Berth.ExplainImage(ctx, namespace, berthapi.PullRequest{Ref: args[0], Auth: auth, Handler: handler}, try)
				if err != nil {
					return err
				}
				if err := output.Print(cmd.OutOrStdout(), explained, func(w io.Writer) error { return explain(w, args[0], explained) }); err != nil {
					return err
				}
				if try && !obtainable(explained) {
					return exitcode.Of(1)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&try, "try", false, "ask each endpoint for the image's manifest, check its signatures, and list what refers to it")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "namespace of the pods that use the image; without it, the policy for all namespaces is shown")
	registerHandler(cmd, &handler)
	cmd.Flags().StringVarP(&user, "username", "u", "", "user name for the registry")
	cmd.Flags().BoolVar(&passwordStdin, "password-stdin", false, "read the password from stdin")
	cmd.MarkFlagsRequiredTogether("username", "password-stdin")
	output.Register(cmd)
	return cmd
}

// obtainable reports whether an endpoint that was tried has the image, and nothing refuses it.
func obtainable(e *image.Explanation) bool {
	for i := range e.Endpoints {
		if a := e.Endpoints[i].Attempt; a != nil && a.Fault == "" {
			return e.Admission == nil || e.Admission.Trial == nil || e.Admission.Trial.Accepted
		}
	}
	for i := range e.Next { // they are tried if a pull goes on to them
		if obtainable(&e.Next[i]) {
			return true
		}
	}
	return false
}

func explain(w io.Writer, ref string, e *image.Explanation) error {
	if _, err := io.WriteString(w, meaning(ref, e)+candidate(e)); err != nil {
		return err
	}
	for i := range e.Next {
		next := &e.Next[i]
		if _, err := fmt.Fprintf(w, "\n%s\n%s", next.Ref, candidate(next)); err != nil {
			return err
		}
	}
	return nil
}

// meaning says which full names a name means.
func meaning(ref string, e *image.Explanation) string {
	text := ""
	switch {
	case len(e.Candidates) > 1:
		text = fmt.Sprintf("%s names no registry. A pull tries the registries of image.search_registries, in this order:\n", ref)
		for i, name := range e.Candidates {
			text += fmt.Sprintf("   %d. %s\n", i+1, name)
		}
	case e.ShortName && strings.HasPrefix(e.Ref, "docker.io/"):
		text = fmt.Sprintf("%s is pulled as %s\nA name without a registry is of docker.io.\n", ref, e.Ref)
	case e.ShortName:
		text = fmt.Sprintf("%s is pulled as %s\nThe registry is the one of image.search_registries.\n", ref, e.Ref)
	default:
		text = fmt.Sprintf("%s is pulled as %s\n", ref, e.Ref)
	}
	if e.Platform != "" {
		text += "The platform is " + e.Platform + "\n"
	}
	if e.Present != "" && e.ShortName {
		text += "The node has it as " + e.Present + "\n"
	}
	if len(e.Candidates) > 1 {
		text += "\n" + e.Ref + "\n"
	}
	return text
}

// candidate says where a pull looks for one full name, and what decides about its image.
func candidate(e *image.Explanation) string {
	text := ""
	if e.Fault != "" {
		text += "\nA pull fails, and asks no registry: " + e.Fault + "\n"
	}
	number := 0
	for i := range e.Endpoints {
		at := &e.Endpoints[i]
		what := "registry"
		if at.Mirror {
			what = "mirror"
		}
		place := "-"
		if at.Skipped == "" {
			number++
			place = fmt.Sprintf("%d.", number)
		}
		text += fmt.Sprintf("\n%s %s %s\n", place, what, at.URL)
		text += rows([][2]string{
			{"skipped", at.Skipped},
			{"from", at.Source},
			{"problem", at.Problem},
			{"credentials", at.Credentials},
			{"tls", strings.Join(at.TLS, "; ")},
			{"may be asked for", strings.Join(at.Capabilities, ", ")},
			{"health", at.Health},
			{"answer", answer(at.Attempt)},
		})
	}
	return text + admission(e.Admission) + referrers(e.Referrers)
}

// referrers lists the artifacts that refer to the image.
func referrers(r *image.Referrers) string {
	if r == nil {
		return ""
	}
	text := fmt.Sprintf("\nartifacts that refer to %s\n", r.Of)
	for _, one := range r.List {
		text += rows([][2]string{{"artifact", fmt.Sprintf("%s (%.255q), a manifest of %d bytes", one.Digest, one.ArtifactType, one.Size)}})
	}
	switch {
	case r.Fault != "":
		text += rows([][2]string{{"problem", r.Fault}})
	case r.LeftOut > 0:
		text += rows([][2]string{{"not shown", fmt.Sprint(r.LeftOut)}})
	case len(r.List) == 0:
		text += "   the registry has none\n"
	}
	return text
}

// rows are lines of a name and a text, without those that have no text.
func rows(all [][2]string) string {
	text := ""
	for _, row := range all {
		if row[1] != "" {
			text += fmt.Sprintf("   %-17s %s\n", row[0]+":", row[1])
		}
	}
	return text
}

// admission says what decides whether the image may be used, nothing where nothing does.
func admission(a *image.Admission) string {
	if a == nil {
		return ""
	}
	text := "\nwhether it may be used\n"
	if p := a.Policy; p != nil {
		text += rows([][2]string{{"policy", p.File}, {"problem", p.Fault}, {"scope", p.Scope}})
		for i := range p.Requirements {
			r := &p.Requirements[i]
			text += rows([][2]string{{"requires", r.Type + ": " + r.Means}, {"problem", r.Fault}})
			for _, key := range r.Keys {
				text += rows([][2]string{{"key", key}})
			}
			text += rows([][2]string{{"certificate", r.Certificate}})
			for _, log := range r.Logs {
				text += rows([][2]string{{"log", log}})
			}
			text += rows([][2]string{{"must be signed as", r.Identity}})
		}
	}
	if v := a.Verifiers; v != nil {
		text += rows([][2]string{{"programs", fmt.Sprintf("in %s: %s", v.Dir, show.Or(strings.Join(v.Programs, ", ")))}, {"problem", v.Fault}})
	}
	t := a.Trial
	if t == nil {
		return text
	}
	for _, s := range t.Signatures {
		said := "accepted"
		if s.Fault != "" {
			said = "not accepted: " + s.Fault
		}
		text += rows([][2]string{{"signature", fmt.Sprintf("%s: %s", s.Place, said)}})
	}
	decision := "the image may be used"
	if !t.Accepted {
		decision = "the image may not be used: " + t.Fault
	}
	return text + rows([][2]string{{"checked", t.Digest.String()}, {"decision", decision}})
}

func answer(a *image.Attempt) string {
	switch {
	case a == nil:
		return ""
	case a.Fault != "":
		return fmt.Sprintf("failed after %s: %s", a.Took.Round(time.Millisecond), a.Fault)
	}
	return fmt.Sprintf("%s (%s) in %s", a.Digest, a.MediaType, a.Took.Round(time.Millisecond))
}
