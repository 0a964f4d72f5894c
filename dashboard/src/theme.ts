// Light, dark, or as the machine has it.
import { computed, effect, signal } from "@preact/signals";

export type ThemeChoice = "auto" | "light" | "dark";
export const choice = signal<ThemeChoice>((localStorage.getItem("theme") as ThemeChoice) || "auto");
const query = matchMedia("(prefers-color-scheme: dark)");
const machine = signal(query.matches);
query.addEventListener("change", () => (machine.value = query.matches));

export const theme = computed(() => (choice.value === "auto" ? (machine.value ? "dark" : "light") : choice.value));
effect(() => {
  document.documentElement.dataset.theme = theme.value;
});

export function pickTheme(picked: ThemeChoice): void {
  choice.value = picked;
  localStorage.setItem("theme", picked);
}
