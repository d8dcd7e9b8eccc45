"""Words that say little by themselves, which explanations and topics pass over. Knows nothing of texts."""

import re

COMMON_WORDS = frozenset(
    """
    a about above across after again against all almost along already also although always am among an and another any anyone
    anything are around as at away back be became because become been before behind being below between beyond both but by can
    cannot could did do does doing done down due during each either else enough etc even ever every everyone everything few
    first for from further get give go had has have having he hence her here hers herself him himself his how however i if in
    indeed instead into is it its itself just last least less like made make many may me might mine more moreover most mostly
    much must my myself namely near neither never nevertheless next no nobody none nor not nothing now of off often on once one
    only onto or other others otherwise our ours ourselves out over own per perhaps put quite rather re same see seem seemed
    seems several shall she should show since so some someone something sometimes somewhere still such take than that the their
    theirs them themselves then there therefore these they this those though through thus to together too toward towards under
    until up upon us very via was we well were what whatever when where whereas whether which while who whoever whole whom whose
    why will with within without would yet you your yours yourself yourselves two three four five six seven eight nine ten aus
    auf auch bei dass das dem der durch ein eine einem einen einer eines für gibt haben hatte ist mit nach nicht oder sich sie
    sind über und unter vom von wann warum welche welchem welchen welcher welches wem wen wer werden weshalb wessen wie wieso
    wieviel wird wo wofür woher wohin womit wodurch wurde wurden zum zur zwischen avec ces cette combien dans elle laquelle
    lequel les leur où pourquoi quand quel quelle quelles quels qui quoi que sont une cómo cuál cuáles cuándo cuánto cuántos
    cuántas dónde entre fue para por qué quién quiénes sobre cosa gli nella perché quale quali quando quanti quanto sono não
    onde quais qual quantos quem são een het hoeveel met naar niet voor waar waarom wanneer welk welke где для или как какая
    какие какой когда кто куда откуда почему при сколько что чем это
    """.split()  # noqa: SIM905
)
"""Of English, and of seven other languages those that are no English words."""
ASKING = re.compile(
    "[为為]?什[么麼]|怎[么麼样樣]|[如为為]何|哪[里裡儿兒些个個种種]?|[谁誰何]|多少|[几幾]|どこ|いつ|なぜ|ど[うのれ]|อะไร|ใคร|ที่ไหน|เมื่อไร|ทำไม|อย่างไร"
)
"""What asks in Chinese, Japanese and Thai."""
