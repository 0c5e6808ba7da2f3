// Checks deploy/grafana's dashboard against Grafana's own types: the npm package
// @grafana/schema, by TypeScript. Run it as `make dashboard-lint`.
//
//   node tests/dashboard.mjs SCHEMA TYPESCRIPT    the directories that npm installed them into
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

const [schema, typescript] = process.argv.slice(2).map((dir) => resolve(dir, 'node_modules'));
const board = JSON.parse(readFileSync('deploy/grafana/dashboards/intentd.json', 'utf8'));

// The types of a kind of panel's options, and of what its fields may have beside
// those of all panels.
const kinds = {
  stat: ['stat'],
  timeseries: ['timeseries', 'timeseries'],
  heatmap: ['heatmap'],
  'state-timeline': ['statetimeline', 'statetimeline'],
  table: ['table'],
};
const types = join(schema, '@grafana/schema/dist/types/raw');
const of = (kind, name) => `import('${types}/composable/${kind}/panelcfg/x/types.gen').${name}`;
const lines = [
  `import type { Dashboard, Panel, RowPanel, VariableModel, AnnotationQuery } from '${types}/dashboard/x/types.gen';`,
  // In JSON the members of an enum are their texts.
  'type Text<T> = T extends string ? `${T}` : T extends Array<infer E> ? Array<Text<E>> : T extends object ? { [K in keyof T]: Text<T[K]> } : T;',
  // What the types leave to the data source.
  'type Variable = VariableModel & { definition?: string; refId?: string };',
  'type Annotation = AnnotationQuery & { expr: string; titleFormat: string; textFormat: string; step: string };',
  "type Board = Omit<Dashboard, 'panels' | 'templating' | 'annotations'> & {",
  '  panels: Array<Panel | RowPanel>; templating: { list: Array<Variable> }; annotations: { list: Array<Annotation> } };',
  `export const board: Text<Board> = ${JSON.stringify(board)};`,
];
for (const panel of board.panels.filter((p) => p.type !== 'row')) {
  const kind = kinds[panel.type];
  if (!kind) throw new Error(`${panel.title}: no types for ${panel.type}`);
  lines.push(`export const options${panel.id}: Text<${of(kind[0], 'Options')}> = ${JSON.stringify(panel.options)};`);
  const { custom } = panel.fieldConfig.defaults;
  if (custom) lines.push(`export const field${panel.id}: Text<${of(kind[1], 'FieldConfig')}> = ${JSON.stringify(custom)};`);
}

const work = mkdtempSync(join(tmpdir(), 'intentd-dashboard-'));
try {
  const file = join(work, 'dashboard.ts');
  writeFileSync(file, lines.join('\n'));
  execFileSync(process.execPath, [join(typescript, 'typescript/bin/tsc'), '--noEmit', '--strict', '--skipLibCheck',
    '--module', 'esnext', '--moduleResolution', 'bundler', file], { stdio: 'inherit' });
  console.log(`${board.panels.length} panels are as Grafana has them`);
} catch {
  process.exitCode = 1; // the compiler has said why
} finally {
  rmSync(work, { recursive: true, force: true });
}
