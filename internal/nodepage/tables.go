package nodepage

import (
	"fmt"
	"html"
	"net/http"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/podusage"
)

// serveTables is the page without scripts: pods, jobs and images as they are now, and the findings of the last
// examination. The browser asks the user for the token, as a password.
func (p *Page) serveTables(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	state, err := p.state.get(r.Context())
	var images Images
	if err == nil {
		images, err = p.images.get(r.Context())
	}
	if err != nil {
		w.WriteHeader(statusOf(err))
		p.write(w, tablesHead("berth")+"<p>"+html.EscapeString(errs.Message(err))+"</p></body></html>\n")
		return
	}
	out := tablesHead("berth " + state.Node)
	for _, notice := range state.Notices {
		out += `<p class="notice">` + html.EscapeString(notice) + "</p>"
	}
	out += table("Pods", []string{"Pod / container", "State", "CPU", "Memory", "Restarts", "Age"}, podRows(&state))
	var jobs [][]string
	for i := range state.Jobs {
		j := &state.Jobs[i]
		jobs = append(jobs, []string{j.Kind, j.Key, j.Stage, seconds(j.StageAge), j.WaitsFor})
	}
	out += table("Jobs", []string{"Job", "Object", "Stage", "Since", "Waits for"}, jobs)
	var stored [][]string
	for i := range images.Images {
		stored = append(stored, []string{strings.Join(images.Images[i].Names, ", "), megabytes(float64(images.Images[i].Size))})
	}
	out += table("Images", []string{"Image", "Size"}, stored)
	p.write(w, out+findingsTable(p.findings(r))+"</body></html>\n")
}

// findingsTable is the last examination, and a link that begins another one.
func findingsTable(found Findings) string {
	state := `Not examined yet. <a href="tables?examine=1">Examine</a>`
	switch {
	case found.Running:
		state = `An examination is under way. <a href="tables">Show its findings</a>`
	case !found.Ended.IsZero():
		state = `Examined at ` + found.Ended.UTC().Format(time.RFC3339) + `. <a href="tables?examine=1">Examine again</a>`
	}
	if found.Error != "" {
		state += "</p><p>" + html.EscapeString(found.Error)
	}
	var rows [][]string
	for i := range found.Findings {
		if f := &found.Findings[i]; f.Skipped == "" {
			rows = append(rows, []string{string(f.Level), f.Check, f.Object, f.Evidence, f.Fix})
		}
	}
	return "<h2>Findings</h2><p>" + state + "</p>\n" + scrolled([]string{"Level", "Check", "Object", "Evidence", "What to do"}, rows)
}

func (p *Page) write(w http.ResponseWriter, page string) {
	if _, err := w.Write([]byte(page)); err != nil {
		p.log.Debug("a client of the node page has left", "error", err)
	}
}

func tablesHead(title string) string {
	title = html.EscapeString(title)
	return `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">` +
		`<title>` + title + `</title><link rel="stylesheet" href="style.css"></head><body><h1>` + title + `</h1>`
}

// table is a table with a title.
func table(title string, header []string, rows [][]string) string {
	out := "<h2>" + html.EscapeString(title) + "</h2>" + scrolled(header, rows)
	if len(rows) == 0 {
		out += "<p class=\"none\">None.</p>\n"
	}
	return out
}

// scrolled is a table that scrolls by itself where the window is narrow. It escapes every cell.
func scrolled(header []string, rows [][]string) string {
	var out strings.Builder
	out.WriteString("<div class=\"scroll\"><table><thead><tr>")
	for _, name := range header {
		fmt.Fprintf(&out, "<th>%s</th>", html.EscapeString(name))
	}
	out.WriteString("</tr></thead><tbody>")
	for _, row := range rows {
		out.WriteString("<tr>")
		for _, text := range row {
			fmt.Fprintf(&out, "<td>%s</td>", html.EscapeString(text))
		}
		out.WriteString("</tr>\n")
	}
	out.WriteString("</tbody></table></div>\n")
	return out.String()
}

func podRows(state *State) [][]string {
	var rows [][]string
	add := func(name, status string, f *podusage.Figures, restarts uint32, created time.Time) {
		rows = append(rows, []string{name, status, percent(f.CPU), megabytes(f.Memory), fmt.Sprint(restarts), seconds(state.Time.Sub(created))})
	}
	for i := range state.Pods {
		pod := &state.Pods[i]
		status := "not ready"
		if pod.Ready {
			status = "ready"
		}
		add(pod.FullName(), status, &pod.Figures, pod.Restarts, pod.Created)
		for j := range pod.Containers {
			c := &pod.Containers[j]
			add("\u2003"+c.Name, c.State, &c.Figures, c.Restarts, c.Created)
		}
	}
	return rows
}

func percent(cores float64) string {
	if cores == podusage.Unknown {
		return "-"
	}
	return fmt.Sprintf("%.1f %%", cores*100)
}

func megabytes(bytes float64) string {
	if bytes == podusage.Unknown {
		return "-"
	}
	return fmt.Sprintf("%.1f MB", bytes/1e6)
}

func seconds(d time.Duration) string { return d.Truncate(time.Second).String() }
