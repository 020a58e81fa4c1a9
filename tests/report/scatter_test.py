"""Labels and names of groups on a map."""

import xml.etree.ElementTree

import numpy as np

from jaxemb.report import scatter


def test_labels_do_not_cover_each_other():
  rng = np.random.default_rng(0)
  labels = ['word' * (1 + i % 8) for i in range(150)]
  svg = scatter.scatter(
    'n', 't', 'd', rng.normal(size=(150, 2)), labels, labels,
    list(np.arange(150) % 9), [f'group {i}' for i in range(9)], 700, 500,
  )  # fmt: skip
  root = xml.etree.ElementTree.fromstring(svg)
  assert len(root.findall('g')) == 150
  boxes = []
  for item in root.iter('text'):
    assert len(item.text) <= 22
    is_group = item.get('class') == 'group'
    # Narrower than what is reserved: what common fonts need.
    span = len(item.text) * (12.5 if is_group else 10.5) * 0.55
    shift = {None: 0, 'start': 0, 'end': -span, 'middle': -span / 2}
    left = float(item.get('x')) + shift[item.get('text-anchor')]
    bottom = float(item.get('y')) + 2
    boxes.append((left, bottom - 10, left + span, bottom))
  assert len(boxes) > 40
  for i, a in enumerate(boxes):
    assert a[0] > -3 and a[2] < 703 and a[1] > -3 and a[3] < 503
    for b in boxes[:i]:
      assert a[0] >= b[2] or a[2] <= b[0] or a[1] >= b[3] or a[3] <= b[1]


def test_a_group_is_named_amid_its_densest_half():
  close = np.zeros((6, 2)) + [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [0, 2]]
  far = np.array([[500.0, 500], [-400, 300], [300, -500]])
  middle = scatter._densest(np.concatenate([far, close]))
  assert np.abs(middle).max() < 2


def test_a_flat_map_is_low_and_a_tall_one_turned():
  positions = np.stack([np.linspace(-9, 9, 30), np.linspace(0, 3, 30)], axis=1)
  pixels, height = scatter._fit(positions, 1000, 800)
  assert height == 800 / 3 or height < 300
  assert pixels[:, 0].min() >= 10 and pixels[:, 0].max() <= 990
  pixels, height = scatter._fit(positions, 300, 600)
  assert height == 600 and np.ptp(pixels[:, 1]) > np.ptp(pixels[:, 0])
  pixels, _ = scatter._fit(np.zeros((4, 2)), 300, 600)
  assert np.isfinite(pixels).all()
