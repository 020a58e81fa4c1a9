"""Senses: each vector of an ambiguous word is near words of one meaning.

Run `python senses.py [TEXT] [PLOT]`.
"""

import pathlib
import sys
import tempfile

import matplotlib.pyplot as plt

import jaxemb

text = sys.argv[1] if len(sys.argv) > 1 else 'toywiki:1000000'
plot = sys.argv[2] if len(sys.argv) > 2 else __file__.replace('.py', '.svg')
contexts = {  # two contexts of each ambiguous word
  'bank': (
    'loan credit bank mortgage account',
    'delta stream bank water flood',
  ),
  'mouse': ('software screen mouse wireless', 'timid nibble mouse trap squeak'),
  'key': ('rusty gate key latch padlock', 'octave harmony key tenor singer'),
}

with tempfile.TemporaryDirectory() as folder:
  ambiguous = pathlib.Path(folder, 'ambiguous.txt')
  ambiguous.write_text('\n'.join(contexts))
  settings = {'senses.words': str(ambiguous), 'senses.top_ratio': 0.0}
  vectors = jaxemb.train(
    text, config='mixture', sample=1e-3, epochs=5, settings=settings
  )

plt.rcParams['svg.fonttype'] = 'none'  # text stays text
figure, panels = plt.subplots(1, 3, figsize=(11, 3.4), layout='constrained')
for panel, (word, sentences) in zip(panels, contexts.items(), strict=True):
  names, near = [name for name, _ in vectors.senses(word)], []
  senses = [
    vectors.disambiguate(x, x.split().index(word)).argmax() for x in sentences
  ]
  for sense, sentence in zip(senses, sentences, strict=True):
    closest = vectors.most_similar(word, sense=sense, topn=5)
    words = ', '.join(f'{name} {cosine:.2f}' for name, cosine in closest)
    print(f'"{sentence}": {words}')
    near += [name for name, _ in closest if name not in near]
  for sense, sentence in zip(senses, sentences, strict=True):
    cosines = [vectors.similarity(names[sense], x) for x in near]
    panel.plot(cosines, near, 'o', label=sentence)
  panel.invert_yaxis()
  panel.grid(axis='y', color='0.9')
  panel.spines[['top', 'right', 'left']].set_visible(False)
  panel.legend(loc='lower left', bbox_to_anchor=(0, 1), frameon=False)
figure.supxlabel('cosine of a word with the sense that each context has')
figure.savefig(plot)
